"""SQL for a page of rows."""

from __future__ import annotations

from collections.abc import Callable

from refold.adapters.sql.statements import Statements, escaped
from refold.ports.tables import Query, Scalar, ViewTable, Where

_LIKE = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})


def page(query: Query, statements: Callable[[ViewTable], Statements]) -> tuple[str, tuple[Scalar, ...]]:
    """Return the statement of a query and its parameters."""
    of, given = statements(query.table), list[Scalar]()
    mark = of.mark
    conditions = _conditions(query.where, mark, given)
    for within in query.within:
        other = statements(within.table)
        inner = " and ".join(_conditions(within.where, mark, given)) or "true"
        conditions.append(f'"run_id" in (select "run_id" from "{other.name}" where {inner})')
    sorting = [f'"{name}"' for name in query.sorting]
    if query.after:
        marks = ", ".join([mark] * len(sorting))
        conditions.append(f"({', '.join(sorting)}) {'<' if query.descending else '>'} ({marks})")
        given += query.after
    where = f" where {' and '.join(conditions)}" if conditions else ""
    order = ", ".join(f"{name} desc" if query.descending else name for name in sorting)
    ((*named,),) = escaped([tuple(given)], [place for place, value in enumerate(given) if isinstance(value, str)])
    return f"{of.select}{where} order by {order} limit {query.limit:d}", tuple(named)


def _conditions(where: tuple[Where, ...], mark: str, given: list[Scalar]) -> list[str]:
    found = []
    for column, test, value in where:
        if test == "contains":
            names = column.split()
            given += [f"%{str(value).lower().translate(_LIKE)}%"] * len(names)
            either = " or ".join(f"lower(\"{name}\") like {mark} escape '\\'" for name in names)
            found.append(f"({either})")
        else:
            given.append(value)
            found.append(f'"{column}" {test} {mark}')
    return found
