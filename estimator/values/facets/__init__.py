"""The facets of a setup, one file each: every key of the contract is declared here, once."""
