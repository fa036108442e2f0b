import subprocess

from coterie.train import manifest


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_commit_and_changed_files(tmp_path):
    assert manifest.commit(tmp_path) is None
    git(tmp_path, "init")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "x")
    found = manifest.commit(tmp_path)
    assert len(found["commit"]) == 40 and found["changed_files"] == 0
    (tmp_path / "a").write_text("2")
    (tmp_path / "untracked").write_text("")
    assert manifest.commit(tmp_path)["changed_files"] == 1


def test_versions_leave_out_what_is_not_installed():
    found = manifest.versions(["torch", "no-such-package-anywhere"])
    assert set(found) == {"python", "torch"}


def test_hashes(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    assert manifest.hashes([path]) == {str(path): "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}
