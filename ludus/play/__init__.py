"""Playing without a server: built-in players, exported models, single episodes and what came of them."""
