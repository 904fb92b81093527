"""`rest-bridge install`: `library` fetches a template, `effects` finds what its routes would do, `placing` writes."""
