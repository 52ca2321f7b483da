"""The folder that ``headroom rehearse`` puts on Python's path: ``sitecustomize`` runs where any Python begins."""
