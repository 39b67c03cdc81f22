"""How attempts end, and how runs are taken from workers that fell silent."""
