(() => {
  "use strict";
  const trace = JSON.parse(document.getElementById("data").textContent);
  const card = document.getElementById("card");
  const bars = new Map([...document.querySelectorAll(".bar[data-key]")].map((bar) => [bar.dataset.key, bar]));
  const places = new Map(); // token -> where it stands
  const rows = [...document.querySelectorAll(".text")].map((text, row) => {
    const tokens = [...text.querySelectorAll(".t")];
    const rounds = trace.rows[row].map((round) => ({ round, tokens: [], bar: null }));
    let next = 0;
    rounds.forEach((each, index) => {
      each.bar = bars.get(`${row},${index}`);
      each.tokens = tokens.slice(next, next + each.round.marks.length);
      each.tokens.forEach((token, mark) => places.set(token, { row, index, mark, order: next + mark }));
      next += each.round.marks.length;
    });
    tokens.forEach((token, order) => { token.tabIndex = order ? -1 : 0; });
    return { tokens, rounds };
  });

  const make = (name, kind, text) => {
    const out = document.createElement(name);
    if (kind) out.className = kind;
    if (text !== undefined) out.textContent = text;
    return out;
  };
  const number = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(3))));
  const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣");
  const style = (source) => {
    const index = trace.sources.indexOf(source);
    return index ? `s${((index - 1) % 8) + 1}` : "s0";
  };

  function facts(pairs) {
    const list = make("dl");
    for (const [name, value] of pairs) {
      const cell = make("dd");
      cell.append(value);
      list.append(make("dt", "", name), cell);
    }
    return list;
  }

  // Numbers by name, and those called name@source as a table with a line for each source.
  function told(title, values, chosen) {
    const names = Object.keys(values);
    if (!names.length) return [];
    const alone = names.filter((name) => !name.includes("@"));
    const pairs = names.filter((name) => name.includes("@")).map((name) => name.split(/@(.*)/s));
    const columns = [...new Set(pairs.map(([name]) => name))];
    const out = [make("h4", "", title)];
    if (alone.length) out.push(facts(alone.map((name) => [name, number(values[name])])));
    if (columns.length) {
      const table = make("table"), head = table.createTHead().insertRow();
      head.append(make("th"), ...columns.map((name) => make("th", "", name)));
      const body = table.createTBody();
      for (const source of trace.sources) {
        if (!pairs.some(([, of]) => of === source)) continue;
        const line = body.insertRow();
        line.className = source === chosen ? "chosen" : "";
        line.append(make("th", "", source));
        for (const name of columns) line.append(make("td", "", number(values[`${name}@${source}`])));
      }
      out.push(table);
    }
    return out;
  }

  function fill(round, mark) {
    const head = make("div", "head");
    const called = mark && (mark.text ? visible(mark.text) : mark.name || "(no text of its own)");
    head.append(make("span", "quote", mark ? called : `round ${round.number}`), make("span", "what", mark ? mark.mark : ""));
    const parts = [head];
    if (mark && mark.probability !== null) {
      const gauge = make("div", `gauge ${style(mark.source)}`), level = make("i");
      level.style.width = `${100 * mark.probability}%`;
      gauge.append(level);
      parts.push(facts([["probability", number(mark.probability)]]), gauge);
    }
    const source = mark ? mark.source : round.source, name = make("span");
    name.append(make("i", `swatch ${style(source)}`), source);
    const drafts = `${number(round.lookahead)} asked, ${round.proposed} proposed, ${round.accepted} accepted`;
    const gave = `${round.marks.length} ${round.marks.length === 1 ? "token" : "tokens"}`;
    const pairs = [
      ["source", name],
      ["drafts", round.lookahead === null ? drafts.replace(/^.*?, /, "") : drafts],
      ...(round.tail ? [["chain", `${round.source}, then ${round.tail}`]] : []),
      ["round", `${round.number}: ${gave}, ${(1000 * round.seconds).toFixed(1)} ms`],
    ];
    if (mark) pairs.push(["token id", String(mark.id)]);
    parts.push(facts(pairs), ...told("Signals", round.signals, round.source));
    parts.push(...told("The selector's estimates", round.estimates, round.source));
    card.replaceChildren(...parts);
  }

  let lit = [], anchor = null, pinned = false; // pinned: it stays until a click elsewhere, Escape, or another focus
  function hide() {
    lit.forEach((element) => element.classList.remove("same", "here"));
    lit.forEach((element) => element.removeAttribute("aria-describedby"));
    lit = [];
    card.hidden = true;
    pinned = false;
  }

  // Below or above the token, beside it where neither has room for all, else cut on the roomier side; never over it.
  function place() {
    const box = anchor.getClientRects()[0] || anchor.getBoundingClientRect(), gap = 8;
    card.style.maxHeight = "none";
    const { width, height } = card.getBoundingClientRect();
    const below = innerHeight - box.bottom - 2 * gap, above = box.top - 2 * gap;
    let left = Math.max(gap, Math.min(box.left, innerWidth - width - gap)), tall = height, top = box.bottom + gap;
    const right = box.right + gap, before = box.left - gap - width;
    if (height > below && height <= above) top = box.top - gap - height;
    else if (height > below && (right + width <= innerWidth - gap || before >= gap)) {
      tall = Math.min(height, innerHeight - 2 * gap);
      left = right + width <= innerWidth - gap ? right : before;
      top = Math.max(gap, Math.min(box.top, innerHeight - gap - tall));
    } else if (height > below) {
      tall = Math.max(80, below, above);
      if (above > below) top = box.top - gap - tall;
    }
    card.style.maxHeight = `${tall}px`;
    card.style.left = `${left}px`;
    card.style.top = `${top}px`;
  }

  function show(row, index, mark, at) {
    hide();
    anchor = at;
    const { round, tokens, bar } = rows[row].rounds[index];
    fill(round, mark === null ? null : round.marks[mark]);
    tokens.forEach((token) => token.classList.add("same"));
    lit = [...tokens];
    if (bar) { bar.classList.add("here"); lit.push(bar); }
    if (mark !== null) {
      tokens[mark].classList.add("here");
      tokens[mark].setAttribute("aria-describedby", "card");
    }
    card.hidden = false;
    place();
  }

  function open(token, pin) {
    const at = places.get(token);
    show(at.row, at.index, at.mark, token);
    pinned = pin;
    if (!pin) return;
    rows[at.row].tokens.forEach((each) => { if (each.tabIndex === 0) each.tabIndex = -1; });
    token.tabIndex = 0; // where the tab key comes back to
  }

  function step(token, key) {
    const at = places.get(token), { tokens, rounds } = rows[at.row];
    if (key === "ArrowRight") return tokens[at.order + 1];
    if (key === "ArrowLeft") return tokens[at.order - 1];
    if (key === "ArrowDown") return rounds[at.index + 1] && rounds[at.index + 1].tokens[0];
    if (key === "ArrowUp") return rounds[at.index - 1] && rounds[at.index - 1].tokens[0];
    if (key === "Home") return tokens[0];
    if (key === "End") return tokens[tokens.length - 1];
    return undefined;
  }

  const over = (event, name) => event.target instanceof Element && event.target.closest(name);
  document.addEventListener("mouseover", (event) => {
    if (pinned || over(event, "#card")) return;
    const token = over(event, ".t"), bar = over(event, ".bar");
    if (token) open(token, false);
    else if (bar) show(...bar.dataset.key.split(",").map(Number), null, bar);
    else hide();
  });
  document.addEventListener("focusin", (event) => {
    const token = over(event, ".t");
    if (token) open(token, true);
    else if (!over(event, "#card")) hide();
  });
  document.addEventListener("click", (event) => {
    const token = over(event, ".t"), bar = over(event, ".bar"), key = over(event, ".key");
    if (token) {
      open(token, true);
      const at = places.get(token);
      try { history.replaceState(null, "", `#r${at.row + 1}t${at.order + 1}`); } catch { /* some frames forbid it */ }
    } else if (bar) {
      const [row, index] = bar.dataset.key.split(",").map(Number);
      rows[row].rounds[index].tokens[0].focus();
    } else if (key) alone(key);
    else if (!over(event, "#card")) hide();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const token = over(event, ".t"), next = token && step(token, event.key);
    if (next) { event.preventDefault(); next.focus(); }
  });
  addEventListener("scroll", () => {
    if (pinned) place();
    else if (!card.hidden && !card.matches(":hover")) hide();
  }, { passive: true });

  // One source or one kind of token alone; a second press shows all again.
  function alone(key) {
    const on = key.getAttribute("aria-pressed") !== "true", name = key.dataset.only;
    document.querySelectorAll(".key").forEach((each) => each.setAttribute("aria-pressed", String(on && each === key)));
    const bySource = /^s\d$/.test(name);
    document.querySelectorAll(".t, .bar").forEach((each) => {
      const other = !each.classList.contains(name) && (bySource || each.classList.contains("t"));
      each.classList.toggle("dim", on && other);
    });
  }

  function link() {
    const found = /^#r(\d+)t(\d+)$/.exec(location.hash);
    const token = found && rows[found[1] - 1] && rows[found[1] - 1].tokens[found[2] - 1];
    if (!token) return;
    token.scrollIntoView({ block: "center" });
    token.focus({ preventScroll: true });
    open(token, true); // also where the window itself has no focus
  }
  addEventListener("hashchange", link);
  link();
})();
