"""Tables stand between marks of the page of results, every mark has a table, and every table a mark."""

import pytest

from papers.page import filled
from secagg.errors import LocalError

PAGE = "Text.\n\n<!-- begin one -->\nold\n<!-- end one -->\n\nMore.\n"


def test_a_table_replaces_what_stood_between_its_marks() -> None:
    assert filled(PAGE, {"one": "| new |\n"}) == PAGE.replace("old", "| new |")


def test_filling_twice_is_filling_once() -> None:
    once = filled(PAGE, {"one": "| new |"})

    assert filled(once, {"one": "| new |"}) == once


def test_an_empty_mark_is_filled() -> None:
    assert "| new |" in filled("<!-- begin one -->\n<!-- end one -->\n", {"one": "| new |"})


@pytest.mark.parametrize("tables", [{}, {"one": "", "two": ""}])
def test_marks_and_tables_must_meet(tables: dict[str, str]) -> None:
    with pytest.raises(LocalError, match=r"either a mark or a table is missing: (one|two)"):
        filled(PAGE, tables)
