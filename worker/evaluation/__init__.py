"""Assessments: frozen policies that play to be judged, against each other (`match`) or alone (`evaluate`)."""
