"""The facets of a setup, one per file. Every key of the contract is declared here, once."""
