"""Networks: their shapes (`layout`), acting (`acting`: in numpy or torch), learning (the others)."""
