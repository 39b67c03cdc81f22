"""What ML-Agents says, in Ludus' terms: specs and observations from its messages, pictures from its PNG files."""
