// The legend of the curves: a group per setting, a box to hide each line, and its value where the reader points.

const swatch = (member) =>
  svg("svg", { class: "swatch", viewBox: "0 0 34 14", "aria-hidden": "true", style: `--c:${member.color}` },
    svg("path", { class: "line", d: "M1 7H33", "stroke-width": member.width, "stroke-dasharray": member.dash }),
    svg("path", { class: "marker", d: member.marker, transform: `translate(17 7) scale(${member.size})` }));

class Legend {
  constructor(hidden, changed) {
    this.hidden = hidden;
    this.changed = changed;
    this.element = html("div", { class: "legend" });
  }

  show(place) {
    this.caption = html("caption");
    this.groups = place.cohorts.map((cohort) => this.group(cohort, place.cohorts.length > 1));
    this.element.replaceChildren(html("table", {}, this.caption, ...this.groups.map((group) => group.body)));
    this.check();
  }

  group({ name, members }, titled) {
    const box = this.box(members);
    const title = html("th", { colspan: 3, scope: "rowgroup" }, html("label", {}, box, ` ${name || "no preset"}`));
    const rows = members.map((member) => this.row(member));
    const body = html("tbody", {}, ...(titled ? [html("tr", {}, title)] : []), ...rows.map((row) => row.element));
    return { members, box, rows, body };
  }

  row(member) {
    const box = this.box([member]);
    const value = html("td", { class: "number" });
    const wide = html("td", { class: "number wide" });
    const name = html("th", { scope: "row" }, html("label", {}, box, swatch(member), ` ${member.name}`));
    return { member, box, value, wide, element: html("tr", {}, name, value, wide) };
  }

  box(members) {
    const box = html("input", { type: "checkbox" });
    box.addEventListener("change", () => {
      for (const member of members) this.hidden[box.checked ? "delete" : "add"](member);
      this.check();
      this.changed();
    });
    return box;
  }

  // Boxes as the lines are: one of a group is neither on nor off where only some of its lines are shown.
  check() {
    for (const { members, box, rows, body } of this.groups) {
      const shown = members.filter((member) => !this.hidden.has(member)).length;
      box.checked = shown === members.length;
      box.indeterminate = shown > 0 && shown < members.length;
      body.classList.toggle("off", !shown);
      for (const row of rows) {
        row.box.checked = !this.hidden.has(row.member);
        row.element.classList.toggle("off", !row.box.checked);
      }
    }
  }

  // Values beside the names; `read` gives the texts of a member.
  write(title, read) {
    this.caption.textContent = title;
    for (const { member, value, wide } of this.groups.flatMap((group) => group.rows)) {
      [value.textContent, wide.textContent] = this.hidden.has(member) ? ["", ""] : read(member);
    }
  }
}
