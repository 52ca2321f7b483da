"""Data for a component's JavaScript, numbered so that it never goes back to older data.

Streamlit 1.67 imports a component's script anew for each data, and calls it when the import is done. While the script
first loads, two imports are under way and the older data may come last. It would then stay on the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any
from uuid import uuid4

import streamlit as st

SCRIPT = (files(__package__) / "in_order.js").read_text()
"""The JavaScript function ``isOld``, for the scripts of components that receive such data."""


def numbered(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The data with its place in the order of this session's data.

    In a list, because Streamlit imports pandas and pyarrow (0.5 s, 80 MB) to look for tables in a dict.
    """
    session, number = st.session_state.get("sent", (uuid4().hex, 0))
    st.session_state["sent"] = session, number + 1
    return [{**data, "order": [session, number]}]
