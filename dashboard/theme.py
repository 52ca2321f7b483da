"""The colours of the parts of memory, the same in every figure and table, and the page's few styles.

The palette is Okabe and Ito's (2008, jfly.uni-koeln.de/color), which is safe for colour blindness. Its yellow is
darkened to be visible on white paper.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import quote

from estimator import Component, Verdict


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """Name and colours of a part of memory."""

    label: str
    colour: str
    ink: str
    """Colour of text on top of it."""
    hollow: bool = False
    """Drawn as an outline: the need includes it, but it is not allocated."""

    @property
    def fill(self) -> str:
        """Fill colour of its bars."""
        return f"{self.colour}33" if self.hollow else self.colour

    @property
    def edge(self) -> str:
        """Colour of its bars' outline."""
        return self.colour if self.hollow else "rgba(127,138,148,0.6)"

    @property
    def edge_width(self) -> float:
        """Width of its bars' outline in pixels."""
        return 1.5 if self.hollow else 0.5


BLACK, WHITE = "#101418", "#FFFFFF"
COMPONENTS: dict[Component, DrawnPart] = {
    Component.WEIGHTS: DrawnPart("Weights", "#0072B2", WHITE),
    Component.ADAPTERS: DrawnPart("Adapters", "#CC79A7", BLACK),
    Component.REFERENCE_MODEL: DrawnPart("Reference model", "#8C5A3C", WHITE),
    Component.INFERENCE_ENGINE: DrawnPart("Inference engine", "#00798C", WHITE),
    Component.GRADIENTS: DrawnPart("Gradients", "#E69F00", BLACK),
    Component.OPTIMIZER_STATES: DrawnPart("Optimizer states", "#009E73", BLACK),
    Component.ACTIVATIONS: DrawnPart("Activations", "#56B4E9", BLACK),
    Component.LOGITS: DrawnPart("Logits", "#D55E00", BLACK),
    Component.TEMPORARIES: DrawnPart("Temporaries", "#C9B500", BLACK),
    Component.COMMUNICATION: DrawnPart("Communication", "#7F5DA8", WHITE),
    Component.WORKSPACE: DrawnPart("Workspace", "#7F8A94", BLACK),
}
RESERVE = DrawnPart("Context, allocator", "#9AA4AE", BLACK, hollow=True)
"""The CUDA context and what the allocator adds: part of the need, but no tensors."""
VERDICTS: dict[Verdict, DrawnPart] = {
    Verdict.FITS: DrawnPart("Fits", "#00785A", WHITE),
    Verdict.TIGHT: DrawnPart("Tight", "#8A5800", WHITE),
    Verdict.DOES_NOT_FIT: DrawnPart("Does not fit", "#B83A00", WHITE),
}
VERDICTS_ON_DARK: dict[Verdict, str] = {
    Verdict.FITS: "#35C79B",
    Verdict.TIGHT: "#F2B33D",
    Verdict.DOES_NOT_FIT: "#FF8A57",
}
NEUTRAL = ("#4A5560", "#B4BEC8")
"""Colours without a verdict, on a light and on a dark page."""


@dataclass(frozen=True, slots=True)
class Look:
    """Colours of a figure that differ between the light and the dark page."""

    ink: str
    capacity: str
    ground: str = "#FFFFFF"


LIGHT = Look("#1B2530", VERDICTS[Verdict.DOES_NOT_FIT].colour)
DARK = Look("#E8EDF2", VERDICTS_ON_DARK[Verdict.DOES_NOT_FIT], "#11161C")
GRID = "rgba(127,138,148,0.25)"


def _verdict_colours() -> str:
    return "\n".join(
        f".hr-{verdict} {{ color: light-dark({part.colour}, {VERDICTS_ON_DARK[verdict]}); }}"
        for verdict, part in VERDICTS.items()
    )


WITHOUT_SIDEBAR = """<style>
[data-testid="stSidebar"], [data-testid="stExpandSidebarButton"] { display: none !important; }
@media (min-width: 901px) { nav.hr-pages b { display: inline; } }
@media (max-width: 900px) {
  .stApp nav.hr-pages { left: 4.5rem !important; visibility: visible !important; }
}
@media (max-width: 640px) {
  [data-testid="stHeader"] { display: none !important; }
  .stMainBlockContainer { padding-top: .8rem !important; }
}
</style>"""
"""CSS for a page without a sidebar."""
PRESENTATION = """<style>
html { font-size: 26px; }
[data-testid="stSidebar"], [data-testid="stSidebarCollapsedControl"], [data-testid="stExpandSidebarButton"],
[data-testid="stHeader"], .hr-pages { display: none !important; }
.stMainBlockContainer { padding: 1rem 2rem .5rem !important; max-width: none; }
.hr-stage { border-left: 1.2rem solid var(--hr); padding: .2rem 1.2rem .4rem;
  background: color-mix(in srgb, var(--hr) 11%, transparent); }
.hr-stage p { margin: 0; line-height: 1.25; }
.hr-who { font-size: 1.5rem; font-weight: 600; }
.hr-big { font-size: clamp(2rem, 6.2vw, 5rem); font-weight: 800; color: var(--hr); line-height: 1.1; }
.hr-need, .hr-asked { font-size: 1.4rem; }
.hr-verdict .hr-word { font-size: clamp(2rem, 5vw, 4.2rem) !important; line-height: 1.1 !important; }
.hr-verdict { min-height: 0; padding-bottom: .4rem; }
.hr-verdict .hr-small, .hr-setup, .hr-cards-methods, .st-key-start, .st-key-own-error, .hr-stays
  { display: none !important; }
</style>"""
"""CSS for the projector: all type at least 1.6 times as large, and no sidebar."""
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<path fill="#0072B2" d="M1 11h14v4H1z"/><path fill="#009E73" d="M1 6h14v4H1z"/>'
    '<path fill="none" stroke="#9AA4AE" d="M1.5 1.5h13v3h-13z"/></svg>'
)
"""The page's icon: two parts of memory, and headroom."""
ICON_SCRIPT = f"""<script data-of="icon">
document.querySelector('link[rel~="icon"]').href = {json.dumps(f"data:image/svg+xml,{quote(ICON)}")};
</script>"""
"""Shows the icon. Given it as an argument, Streamlit imports numpy; a ":material/…:" name would be fetched
from another server."""


STYLE = f"""<style>
.hr-verdict {{ min-height: 9.7rem; }}
.st-key-start {{ align-items: center; margin-top: -.6rem; }}
.st-key-own-error {{ row-gap: 0; margin-top: -.6rem; }}
.st-key-own-error .hr-text {{ margin-bottom: .2rem; }}
:is(.st-key-start, .st-key-own-error) button {{ min-height: 1.8rem; padding: .1rem .6rem; text-decoration: underline; }}
.st-key-start > * {{ display: flex; align-items: center; }}
.hr-verdict {{ padding: .7rem 1.1rem .8rem; border-left: .6rem solid var(--hr); border-radius: .4rem;
  background: color-mix(in srgb, var(--hr) 11%, transparent); }}
.hr-verdict p {{ margin: 0; }}
.hr-verdict .hr-word {{ color: var(--hr); font-size: 2.3rem; font-weight: 700; line-height: 1.2; }}
.hr-verdict .hr-say {{ font-size: 1.25rem; line-height: 1.4; margin-top: .15rem; }}
.hr-verdict .hr-run {{ font-size: 1.05rem; line-height: 1.4; }}
.hr-verdict .hr-setup {{ font-size: .95rem; line-height: 1.4; }}
.hr-setup button {{ all: unset; white-space: normal; font-style: italic; cursor: pointer;
  text-decoration: underline dotted 1px; text-underline-offset: .2em; }}
.hr-setup [data-scrub] {{ cursor: ew-resize; touch-action: pan-y; user-select: none; }}
.hr-setup button:hover {{ text-decoration-style: solid; }}
.hr-setup button:focus-visible {{ outline: 3px solid #56B4E9; border-radius: .15rem; }}
.hr-small {{ font-size: .875rem; line-height: 1.45; opacity: .8; }}
.hr-verdict .hr-small {{ margin-top: .35rem; }}
.hr-brand {{ font-size: 1.35rem; font-weight: 700; margin: 0; line-height: 1.1; }}
.hr-brand + p {{ font-size: .875rem; opacity: .8; margin: .2rem 0 0; white-space: nowrap; }}
.st-key-actions button {{ min-height: 2rem; padding: .1rem .55rem; }}
.st-key-actions > div {{ flex: none; }}
[data-testid="stHeader"] {{ background: light-dark(#FFFFFF, #11161C);
  border-bottom: 1px solid rgba(127,138,148,.3); }}
.hr-pages {{ position: fixed; top: 0; left: 20.5rem; height: 3.75rem; z-index: 999991; display: flex;
  align-items: center; gap: .3rem; }}
.hr-pages a {{ color: inherit; text-decoration: none; padding: .35rem .7rem; border-radius: .5rem;
  white-space: nowrap; }}
.hr-pages b {{ display: none; font-size: 1.35rem; position: fixed; left: 1.9rem; }}
.hr-stays {{ position: fixed; top: 0; right: 3.4rem; height: 3.75rem; z-index: 999991; display: flex; gap: .8rem;
  align-items: center; font-size: .9375rem; cursor: pointer; animation: hr-stays linear both;
  animation-timeline: --hr-page; animation-range: 4rem 12rem; }}
.hr-stays b {{ color: var(--hr); }}
[data-testid="stMain"] {{ scroll-timeline: --hr-page block; }}
.stApp {{ timeline-scope: --hr-page; }}
@keyframes hr-stays {{ from {{ opacity: 0; visibility: hidden; }} to {{ opacity: 1; visibility: visible; }} }}
@media (min-width: 641px) and (max-width: 1180px) {{
  .hr-stays {{ top: auto; bottom: 0; right: 0; height: 2.9rem; padding: 0 1.2rem; border-left: .4rem solid var(--hr);
    border-radius: .4rem 0 0 0; background: light-dark(#FFFFFF, #11161C); box-shadow: 0 0 .5rem rgba(0,0,0,.25); }}
  .hr-stays span {{ display: none; }} }}
@media (max-width: 900px) {{
  .hr-pages {{ left: 4.5rem; }}
  .stApp:not(:has([data-testid="stExpandSidebarButton"])) .hr-pages {{ left: 19.5rem; gap: 0; font-size: .9375rem; }}
  .stApp:not(:has([data-testid="stExpandSidebarButton"])) .hr-pages a {{ padding: .35rem .5rem; }} }}
@media (min-width: 641px) and (max-width: 768px) {{
  .stApp:not(:has([data-testid="stExpandSidebarButton"])) .hr-pages {{ visibility: hidden; }} }}
.hr-more > summary, .hr-verdict summary {{ cursor: pointer; width: fit-content; }}
.hr-more > summary {{ font-weight: 600; font-size: 1.05rem; margin: 1rem 0 .3rem; }}
.hr-verdict summary:focus-visible, .hr-more > summary:focus-visible {{ outline: 3px solid #56B4E9; }}
.stHeading h2 {{ font-size: 1.3rem; padding: 1rem 0 .3rem; }}
[role="radio"][aria-checked="true"] p {{ color: light-dark(#00507D, #8ECBF3); }}
[data-testid="stBaseButton-primary"] p, [data-testid="stMultiSelect"] span[title]
  {{ color: light-dark(#FFFFFF, #11161C); }}
.hr-label {{ font-size: .875rem; margin: 0; }}
.hr-whole {{ white-space: nowrap; }}
[data-stale="true"] {{ transition: none !important; opacity: 1 !important; }}
.hr-pages a:hover {{ background: rgba(127,138,148,.18); }}
.hr-pages a:focus-visible {{ outline: 3px solid #56B4E9; }}
.hr-pages a[aria-current] {{ background: rgba(127,138,148,.18); }}
.hr-pages span {{ font-size: .8rem; font-weight: 600; padding: .1rem .45rem; border-radius: 1rem; color: #FFFFFF;
  background: #0072B2; }}
.hr-head {{ font-size: 1.05rem; font-weight: 600; margin: 1rem 0 .3rem; padding: 0; }}
.hr-text {{ font-size: 1rem; line-height: 1.5; max-width: 60rem; margin: 0; }}
ul.hr-text {{ padding-left: 1.2rem; }}
.hr-table {{ width: 100%; border-collapse: collapse; font-size: 1rem; }}
.hr-table th {{ text-align: left; font-weight: 600; font-size: .875rem; opacity: .8; }}
.hr-table th, .hr-table td {{ padding: .35rem .75rem .35rem 0; vertical-align: baseline;
  border-bottom: 1px solid rgba(127,138,148,.3); }}
.hr-table .hr-n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
.hr-table tr.hr-sum td {{ font-weight: 600; }}
.hr-table .hr-what, .hr-table tr.hr-sum .hr-what {{ font-size: .875rem; font-weight: 400; opacity: .85; }}
.hr-scroll {{ overflow-x: auto; }}
.hr-table.hr-proof {{ width: auto; margin-top: .6rem; }}
.hr-next {{ margin-top: .6rem; }}
.hr-picked {{ border-left: .3rem solid #0072B2; padding: .3rem .8rem; overflow-wrap: anywhere; }}
.hr-plan-asked {{ display: none; margin: 0; }}
.st-key-plan-head {{ gap: 1.5rem; }}
.st-key-plan-form [data-testid="stNumberInputContainer"] button,
.st-key-team-form [data-testid="stNumberInputContainer"] button {{ display: none; }}
.hr-team .hr-verdict {{ min-height: 0; }}
.hr-jobs a, .hr-plan-asked a {{ color: light-dark(#0072B2, #56B4E9); }}
.st-key-plan-amounts > div, .st-key-plan-lengths > div {{ flex: 1 1 4.2rem !important; min-width: 4.2rem; }}
.hr-jobs th[scope="row"] {{ font-size: 1rem; opacity: 1; }}
.hr-table.hr-jobs td:not(:last-child) {{ white-space: nowrap !important; }}
.hr-table.hr-jobs td:last-child {{ min-width: 16rem; }}
@media (max-width: 1000px) {{
  .hr-plan-asked {{ display: block; }}
  .st-key-plan-columns [data-testid="stHorizontalBlock"]:has(> [data-testid="stColumn"] .st-key-plan-form)
    {{ flex-direction: column-reverse; }}
  .st-key-plan-columns [data-testid="stColumn"] {{ width: 100%; flex: none; }}
}}
.hr-cards {{ display: grid; gap: .6rem; grid-auto-flow: column; grid-auto-columns: minmax(0, 1fr); }}
:has(> .hr-cards) {{ container-type: inline-size; }}
@container (max-width: 560px) {{ .hr-cards {{ grid-auto-flow: row; }} }}
.hr-cards-remedies {{ grid-auto-flow: row; margin-top: .4rem; }}
.hr-cards > div {{ position: relative; }}
.hr-card {{ font-size: 1rem; line-height: 1.45; margin: 0; padding: .6rem .95rem; }}
.hr-cards button {{ position: absolute; inset: 0; cursor: pointer; background: none; border-radius: .5rem;
  border: 1px solid rgba(127,138,148,.45); }}
.hr-cards button:hover {{ border-color: #0072B2; background: rgba(0,114,178,.07); }}
.hr-cards button:disabled {{ border: 2px solid #0072B2; background: none; cursor: default; }}
.hr-cards button:focus-visible {{ outline: 3px solid #56B4E9; }}
.hr-card small {{ font-size: .875rem; opacity: .85; }}
{_verdict_colours()}
.hr-cards-methods .hr-card {{ font-size: .9375rem; overflow-wrap: anywhere; }}
.hr-heard {{ position: absolute; width: 1px; height: 1px; margin: 0; overflow: hidden; clip-path: inset(50%); }}
.hr-plot:focus-visible, .hr-scroll:focus-visible {{ outline: 3px solid #56B4E9; }}
.hr-compare {{ border-collapse: separate; border-spacing: 0; font-size: 1rem; min-width: 100%; }}
.hr-compare th, .hr-compare td {{ text-align: left; vertical-align: top; padding: .4rem .9rem .4rem 0; min-width: 8rem;
  border-bottom: 1px solid rgba(127,138,148,.3); }}
.hr-compare thead th {{ font-weight: 600; overflow-wrap: anywhere; border-bottom-width: 2px; }}
.hr-compare tr > th:first-child {{ position: sticky; left: 0; background: light-dark(#FFFFFF, #11161C);
  min-width: 7.5rem; font-weight: 600; }}
.hr-compare .hr-part th {{ padding-top: 1.3rem; font-size: .875rem; opacity: .85; border-bottom-width: 2px; }}
.hr-compare td small {{ display: block; font-size: .875rem; opacity: .85; }}
.hr-compare .hr-best i {{ font-size: .8rem; opacity: .85; }}
.hr-compare .hr-best b {{ color: light-dark(#00785A, #35C79B); }}
.hr-answers {{ font-size: 1.0625rem; line-height: 1.5; margin: 0; max-width: 66rem; }}
.hr-legend {{ margin: 0; font-size: .9375rem; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; }}
.st-key-method-peaks .hr-legend {{ display: none; }}
.st-key-hero .hr-legend {{ min-height: 1.3rem; line-height: 1.3rem; font-size: .875rem; gap: 0 .9rem; }}
.hr-line {{ display: inline-block; width: .25em; height: 1em; vertical-align: -.12em; margin-right: .5em;
  background: light-dark(#B83A00, #FF8A57); }}
.hr-copy {{ font: inherit; color: inherit; background: transparent; border: 1px solid rgba(127,138,148,.45);
  border-radius: .5rem; padding: .25rem .75rem; min-height: 2.5rem; font-size: .875rem; cursor: pointer; }}
.hr-copy:hover, .hr-copy:focus-visible {{ border-color: #0072B2; color: #0072B2; }}
.hr-verdict > *, .hr-stays > *, .hr-cards-methods > *, .hr-limits > *, .st-key-hero > *, .st-key-method-peaks > *,
.st-key-below > * {{ transition: opacity .12s; }}
[data-late] {{ position: relative; }}
.hr-stays[data-late] {{ position: fixed; }}
[data-late] > *, .hr-ruler[data-late] .hr-band, .stApp[data-waits] .hr-band
  {{ opacity: .35 !important; transition: none !important; }}
.hr-ruler[data-late] > * {{ opacity: 1 !important; }}
.hr-verdict[data-late]::after, .hr-cards[data-late]::after, .st-key-hero[data-late]::after,
.st-key-method-peaks[data-late]::after, .st-key-below[data-late]::after, .hr-ruler[data-late] b::after
  {{ content: "updating"; position: absolute; top: .3rem; right: .6rem; font-size: .8125rem; font-weight: 400;
  z-index: 2; }}
.hr-ruler[data-late] b::after {{ position: static; margin-left: .4rem; font-size: .75rem; }}
.st-key-below[data-part] [data-stale="true"] {{ visibility: hidden; }}
.st-key-below[data-part="0"] [class*="st-key-part-"]:not(.st-key-part-0),
.st-key-below[data-part="1"] [class*="st-key-part-"]:not(.st-key-part-1),
.st-key-below[data-part="2"] [class*="st-key-part-"]:not(.st-key-part-2),
.st-key-below[data-part="3"] [class*="st-key-part-"]:not(.st-key-part-3) {{ visibility: hidden; }}
.st-key-edge {{ margin: -.35rem 0 -.2rem; }}
.hr-edge {{ display: grid; gap: .15rem; }}
.hr-ruler {{ display: grid; grid-template-columns: 5.6rem 1fr; align-items: end; font-size: .875rem; }}
.hr-ruler b {{ line-height: 1.4rem; }}
.hr-track {{ position: relative; height: 1.4rem; margin-top: 1.05rem; border-radius: .3rem;
  background: repeating-linear-gradient(135deg, rgba(184,58,0,.16) 0 6px, transparent 6px 12px); }}
.hr-band {{ position: absolute; top: 0; height: 100%; overflow: hidden; display: flex; flex-wrap: wrap;
  box-sizing: border-box; padding: 0 .35rem; border: 0; border-left: 1px solid light-dark(#FFFFFF, #11161C);
  text-align: left; font: inherit; font-size: .8125rem; line-height: 1.4rem; color: #101418; }}
.hr-band::before, .hr-untold::before {{ content: ""; height: 100%; }}
.hr-untold {{ position: absolute; top: 0; right: 0; height: 100%; overflow: hidden; display: flex; flex-wrap: wrap;
  padding: 0 .3rem; line-height: 1.4rem; font-size: .8125rem; white-space: nowrap; }}
.hr-untold span:not(:empty) {{ background: light-dark(#FFFFFF, #11161C); padding: 0 .3rem; }}
.hr-said {{ flex: none; white-space: nowrap; }}
.hr-band small {{ font-size: .75rem; }}
button.hr-band {{ cursor: pointer; }}
button.hr-band:hover {{ text-decoration: underline; }}
button.hr-band:focus-visible {{ outline: 3px solid #56B4E9; z-index: 2; }}
.hr-band-0 {{ background: #00785A; color: #FFFFFF; }}
.hr-band-1 {{ background: #7FD1B9; }}
.hr-band-2 {{ background: #56B4E9; }}
.hr-band-3 {{ background: #8ECBF3; }}
.hr-band-4 {{ background: #BBDFF8; }}
.hr-band-5 {{ background: #DCEEFB; }}
.hr-made {{ position: absolute; top: 0; height: 100%; border-left: 2px dotted light-dark(#1B2530, #E8EDF2); }}
.hr-flag {{ position: absolute; top: -1.05rem; bottom: -.2rem; width: 0;
  border-left: 3px solid light-dark(#1B2530, #E8EDF2);
  transform: translateX(-50%); cursor: ew-resize; touch-action: none; z-index: 3; }}
.hr-flag::after {{ content: ""; position: absolute; inset: 0 -.8rem; }}
.hr-flag span {{ position: absolute; top: 0; left: 50%; transform: translateX(-50%); padding: 0 .4rem;
  border-radius: .3rem; line-height: 1.05rem; font-size: .8125rem; font-weight: 600;
  color: light-dark(#FFFFFF, #11161C);
  background: light-dark(#1B2530, #E8EDF2); white-space: nowrap; }}
.hr-ruler[data-late] .hr-band {{ pointer-events: none; }}
.hr-limit {{ font-size: .875rem; line-height: 1.45; opacity: .8; margin: -.4rem 0 .2rem; }}
.hr-limit + .hr-limit {{ margin-top: .4rem; }}
[data-testid="stSidebarHeader"] {{ height: 2.25rem; margin-bottom: 0; }}
.hr-swatch {{ display: inline-block; width: .8em; height: .8em; border-radius: .15em; margin-right: .5em;
  outline: 1.5px solid transparent; outline-offset: -1.5px; }}
.st-key-model, .st-key-gpu, .st-key-model-aside, .st-key-heard {{ display: none; }}
[data-testid="stSelectboxVirtualDropdown"] {{ width: max-content !important; min-width: var(--trigger-width);
  max-width: 94vw; }}
.hr-note {{ margin: 0; font-size: .95rem; }}
.stMainBlockContainer .hr-note {{ margin-top: .2rem; }}
.hr-refusal {{ border-left: .3rem solid #E69F00; border-radius: .3rem; padding: .5rem .8rem;
  background: color-mix(in srgb, #E69F00 12%, transparent); overflow-wrap: anywhere; }}
.hr-asking::before {{ content: ""; display: inline-block; width: .8em; height: .8em; margin-right: .5em;
  border: .15em solid #0072B2; border-right-color: transparent; border-radius: 50%;
  vertical-align: -.08em; animation: hr-turn 1s linear infinite; }}
@keyframes hr-turn {{ to {{ transform: rotate(1turn); }} }}
.stMainBlockContainer {{ padding-top: 3.6rem; }}
@media (max-width: 640px) {{
  .hr-pages {{ position: static; height: auto; margin: 0 -.5rem; gap: 0; font-size: .9375rem; }}
  .hr-pages a {{ padding: .35rem .55rem; }}
  [data-testid="stExpandSidebarButton"] {{ width: auto; }}
  [data-testid="stExpandSidebarButton"]::after {{ content: "Change the setup"; margin-left: .4rem; }}
  .hr-verdict {{ min-height: 0; }}
  .hr-stays {{ top: auto; bottom: 0; left: 0; right: 0; height: 2.9rem; padding: 0 1rem; animation: none;
    background: light-dark(#FFFFFF, #11161C); border-top: .25rem solid var(--hr); overflow: hidden;
    white-space: nowrap; }}
  .stMainBlockContainer, [data-testid="stSidebarContent"] {{ padding-bottom: 4rem !important; }}
  .hr-verdict {{ padding: .5rem .8rem .6rem; }}
  .hr-verdict {{ display: flex; flex-direction: column; }}
  .hr-verdict .hr-setup {{ order: 1; margin-top: .35rem; }}
  .hr-verdict details {{ order: 2; }}
  .st-key-model-aside {{ display: flex; }}
  .hr-verdict .hr-word {{ font-size: 1.5rem; }}
  .hr-verdict .hr-say {{ font-size: 1.05rem; }}
  .hr-table.hr-proof {{ font-size: .875rem; }}
  .hr-table.hr-proof th, .hr-table.hr-proof td {{ padding-right: .45rem; white-space: normal; }}
  .hr-table:not(.hr-proof) tr {{ display: grid; grid-template-columns: 1fr auto auto; }}
  .hr-table .hr-what {{ grid-column: 1 / -1; }}
  .hr-table.hr-stages tr {{ grid-template-columns: 1fr repeat(3, 3.6rem); }}
  .hr-table.hr-several tr {{ grid-template-columns: 1fr repeat(4, 3.3rem); }}
  .hr-table.hr-several th {{ white-space: normal; }}
  .hr-table .hr-what, .hr-table .hr-name-cell, .hr-table .hr-n {{ border-bottom: 0; padding-bottom: .1rem; }}
  .hr-table tr {{ border-bottom: 1px solid rgba(127,138,148,.3); }}
  .hr-table th.hr-what {{ display: none; }}
}}
@media (max-width: 420px) {{
  .hr-pages {{ font-size: .875rem; margin: 0 -.75rem; }}
  .hr-pages a {{ padding: .35rem .33rem; }}
  .hr-table.hr-proof {{ font-size: .8125rem; }}
  .hr-table.hr-proof th, .hr-table.hr-proof td {{ padding-right: .3rem; }}
}}
</style>"""
"""The page's style sheet."""
