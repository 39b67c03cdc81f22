"""A pod that cannot start says why, where an operator looks."""

from pathlib import Path

import pytest

from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.rendered import kustomize, render
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(kustomize() is None, reason="needs kubectl or kustomize")


@pytest.mark.long
def test_a_pod_without_its_secret_says_which_file_of_which_variable_is_missing(tmp_path: Path) -> None:
    with Kubelet(render("small"), tmp_path, {}) as kubelet:
        pod = kubelet.start("worker-cpu")
        eventually(lambda: pod.over, "the pod has failed")

    assert pod.code == 2
    assert "LUDUS_DATABASE__URL_FILE" in pod.logs()
    assert "/run/secrets/ludus/database-url" in pod.logs()
    assert kubelet.left() == []
