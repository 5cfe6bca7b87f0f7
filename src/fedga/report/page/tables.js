// Tables that are in the page already: sorting, filtering, and the same as CSV.

const rowsOf = (table) => [...table.tBodies[0].rows];

// A cell's value where it has one, else its text.
const cellValue = (cell) => cell.dataset.value ?? cellText(cell);

// What a cell is sorted by: a number if it is one.
function sortKey(row, column) {
  const text = cellValue(row.cells[column]);
  return { missing: text === "–" || text === "", value: Number(text === "inf" ? Infinity : text), text };
}

function compare(one, other) {
  if (!Number.isNaN(one.value) && !Number.isNaN(other.value)) return one.value - other.value;
  return one.text.localeCompare(other.text, "en", { numeric: true });
}

function sortTable(table, column, descending) {
  const keyed = rowsOf(table).map((row) => ({ row, key: sortKey(row, column) }));
  keyed.sort(({ key: one }, { key: other }) => {
    if (one.missing || other.missing) return one.missing - other.missing;
    return descending ? compare(other, one) : compare(one, other);
  });
  table.tBodies[0].append(...keyed.map(({ row }) => row));
  table.classList.add("sorted");
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = html("button", { type: "button" }, head.textContent);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const descending = before ? before === "ascending" : head.classList.contains("number");
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortTable(table, column, descending);
    });
    head.replaceChildren(button);
  });
}

function makeFilterable(figure) {
  const rows = rowsOf(find("table", figure));
  const lists = findAll("select", figure);
  const search = find("input[type=search]", figure);
  function apply() {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const fits = lists.every((list) => !list.value || cellText(row.cells[list.dataset.column]) === list.value);
      const text = row.textContent.toLowerCase();
      row.hidden = !fits || !words.every((word) => text.includes(word));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    const all = plural(rows.length, "row");
    find(".count", figure).textContent = shown === rows.length ? all : `${shown} of ${all}`;
  }
  for (const control of [...lists, search]) control.addEventListener("input", apply);
  apply();
}

// The text of a cell without the letter of its note.
function cellText(cell) {
  const note = find("sup", cell)?.textContent ?? "";
  const text = cell.textContent.trim();
  return text.slice(0, text.length - note.length);
}

// Values as in the files of `fedga report --files`: deviations have a column of their own, and a dash is no value.
function tableRows(table) {
  const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  const wide = heads.map((_, column) => rowsOf(table).some((row) => "deviation" in row.cells[column].dataset));
  const value = (cell) => (cellValue(cell) === "–" ? "" : cellValue(cell));
  const values = (cell, column) => (wide[column] ? [value(cell), cell.dataset.deviation ?? ""] : [value(cell)]);
  const names = heads.flatMap((head, column) => (wide[column] ? [head, `${head} deviation`] : [head]));
  const rows = rowsOf(table).filter((row) => !row.hidden);
  return [names, ...rows.map((row) => [...row.cells].flatMap(values))];
}

function startTables() {
  for (const figure of findAll("figure.table")) {
    const table = find("table", figure);
    makeSortable(table);
    if (find(".controls", figure)) makeFilterable(figure);
    const file = `${table.dataset.name}.csv`;
    find("button.csv", figure).addEventListener("click", () => save(file, csvText(tableRows(table))));
  }
}
