"""Games of Godot with the plug-in of Godot RL Agents: launches them, is the trainer that they dial, rewrites models."""
