"""The last words of games: the errors with which they end, as the machines of the games report them."""
