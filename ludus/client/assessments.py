"""Results of runs that judge policies: `match` and `evaluate`."""

from ludus.client.transport import Transport, segment
from ludus.schemas import EvaluationResult, MatchResult


class Assessments(Transport):
    """Requests about results."""

    def result(self, run: str) -> MatchResult | EvaluationResult:
        """Return where a run stands that judges policies. Raises NotFound before the first simulator plays."""
        found = self._get(f"/v1/runs/{segment(run)}/result").get("result")
        if isinstance(found, dict) and found.get("kind") == "match":
            return self._read(MatchResult, found)
        return self._read(EvaluationResult, found)
