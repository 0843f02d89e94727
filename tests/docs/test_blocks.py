from __future__ import annotations

from pathlib import Path

import pytest
from tests.blocks import Reader, blocks

PAGE = """
```toml title="a.toml"
x = 1
```

   ```python
   if True:
       n = 2

   ```

<!-- system -->
```console
$ false
```

```python
print("n is", n)
```

```text
n is ...
```

```console
$ cat a.toml
x = 1
$ echo run: \\
    true 7
run: true 7
$ true ...
```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


def test_blocks_are_found(page: Path) -> None:
    found = blocks(page)
    assert [b.language for b in found] == ["toml", "python", "console", "python", "text", "console"]
    assert [b.text for b in found[:2]] == ["x = 1\n", "if True:\n    n = 2\n\n"]
    assert (found[0].title, found[0].line, found[2].mark, found[3].mark) == ("a.toml", 2, "system", None)
    assert len(blocks(page, "python")) == 2


def test_a_page_that_is_right_is_followed(page: Path) -> None:
    Reader(page).follow()


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("n is ...", "n is 3", "but it prints\nn is 2"),
        ("x = 1\n$", "x = 2\n$", "line 26: the page says"),
        ("$ true ...", "$ never ...", "nothing like 'never ...' was printed before"),
        ("$ cat a.toml\nx = 1", "$ false", "line 26: false"),
    ],
)
def test_a_page_that_is_wrong_is_told_where(page: Path, right: str, wrong: str, said: str) -> None:
    page.write_text(PAGE.replace(right, wrong))
    with pytest.raises(AssertionError) as error:
        Reader(page).follow()
    assert said in str(error.value)


def test_marked_blocks_are_run_where_asked_for(page: Path) -> None:
    with pytest.raises(AssertionError, match="line 14: false"):
        Reader(page, marks=frozenset({"system"})).follow()
