"""How long metrics are kept, and where: old points are thinned, and those of ended runs move to the artifact store."""
