// Updates verdict and figure while a slider moves.
//
// When the pointer or focus enters a slider, the server sends its row: what the page shows at each step if nothing else
// changes. A row is valid as long as the server's answers have the same base for its slider.
const SCRUB = 14, SLACK = 4; // pixels of a step in the sentence, and how far a click may slip; our choices
const NAME_ROOM = 12; // pixels around the name of a band
const BY_KEY = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 4, PageDown: -4, Home: -1e9, End: 1e9 };
const start = () => {
  const rows = {};
  const now = { moved: null, wanted: null, asked: null, send: null, steps: {} };
  // Where sliders without a thumb stand until the server has answered, and which of them it has been told. A message that
  // the server has not read yet is replaced by the next one of this component: so nothing else is sent meanwhile, and what
  // was lost is sent again.
  const loose = {}, sent = new Set();
  const sendLoose = () => {
    const [slider] = sent;
    if (slider) alone(() => { if (sent.has(slider)) now.set([slider, Number(loose[slider])]); });
  };
  const boxOf = () => [...document.querySelectorAll(".hr-plot")].find((box) => box.follows);
  const follows = () => boxOf()?.follows ?? { bases: {}, at: {} };
  const inputOf = (slider) => document.querySelector(`.st-key-${slider} input[type="range"]`);
  const textOf = (slider) => loose[slider] ?? inputOf(slider)?.getAttribute("aria-valuetext");
  const scrubbedAt = (node) => node.closest?.("[data-scrub]")?.dataset.scrub;
  const sliderAt = (node) => node.closest?.(".hr-flag")?.closest(".hr-ruler").dataset.slider ?? scrubbedAt(node)
    ?? Object.keys(follows().bases).find((slider) => node.closest?.(`.st-key-${slider}`));
  const othersRest = (slider) =>
    Object.entries(follows().at).every(([other, text]) => other === slider || (textOf(other) ?? text) === text);
  const holds = (slider) => slider in rows && rows[slider].base === follows().bases[slider] && othersRest(slider);

  // Whether a slider has moved on from the answer on screen.
  const isAway = (slider) => (textOf(slider) ?? follows().at[slider]) !== follows().at[slider];

  const documentAt = ({ first, paths, changes }, place) => {
    const made = structuredClone(first);
    for (const [number, value] of changes[place]) {
      const path = paths[number];
      path.slice(0, -1).reduce((inner, key) => inner[key], made)[path.at(-1)] = value;
    }
    return made;
  };

  // Updates only texts if the elements are the same: open details stay open, and screen readers repeat nothing.
  const write = (from, to) => {
    if (from.isEqualNode(to)) return;
    if (from.nodeName !== to.nodeName || from.childNodes.length !== to.childNodes.length) {
      from.replaceWith(to.cloneNode(true));
      return;
    }
    if (from.nodeType === Node.TEXT_NODE) from.data = to.data;
    for (const { name, value } of to.attributes ?? [])
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    [...from.childNodes].forEach((child, place) => write(child, to.childNodes[place]));
  };

  // Whether the verdict on screen is of a row's setups: the server may have drawn another model's since.
  const isOfThese = ({ kinds }) => {
    const of = document.querySelector(".hr-verdict")?.dataset.of;
    return !of || !kinds.length || kinds.includes(of);
  };

  const kindsOf = (row) => [...JSON.stringify(row).matchAll(/data-of=\\"(\w+)/g)].map(([, kind]) => kind);

  const show = ({ figure, alt, of, html }) => {
    for (const [selector, pieces] of Object.entries(html)) {
      const holder = document.querySelector(selector)?.parentElement;
      if (!holder) continue;
      const wanted = document.createElement("template");
      wanted.innerHTML = pieces.join("");
      const old = [...holder.children], fresh = [...wanted.content.children];
      if (old.length === fresh.length) old.forEach((child, place) => write(child, fresh[place]));
      else holder.replaceChildren(...fresh);
    }
    if (figure) boxOf()?.show(figure, alt, of);
  };

  const draw = (slider) => {
    if (!holds(slider) || !isOfThese(rows[slider])) return false;
    const place = rows[slider].texts.indexOf(textOf(slider));
    if (place < 0) return false;
    show(documentAt(rows[slider], place));
    return true;
  };

  // The flags stand where the sliders do, and a ruler is dimmed while anything but its own slider is another.
  const place = () => {
    for (const ruler of document.querySelectorAll(".hr-ruler")) {
      const { slider, of, kind, ends } = ruler.dataset, text = textOf(slider), flag = ruler.querySelector(".hr-flag");
      const isOther = kind !== document.querySelector(".hr-verdict")?.dataset.of; // which comes before the figure's bases
      ruler.toggleAttribute("data-late", isOther || of !== follows().bases[slider] || !othersRest(slider));
      if (!text) continue;
      const [low, high] = ends.split(" ").map(Number), value = Number(text);
      const share = Math.log(Math.max(value, low) / low) / Math.log(high / low);
      const said = value.toLocaleString("en-US"), { firstElementChild: name } = flag;
      flag.style.left = `${100 * Math.min(share, 1)}%`;
      if (name.textContent !== said) name.textContent = said;
    }
    naming ||= requestAnimationFrame(() => setTimeout(nameAll)); // when the figure is painted: to measure lays out the page
  };

  let naming = 0;
  const nameAll = () => {
    naming = 0;
    for (const track of document.querySelectorAll(".hr-track")) {
      const drawn = `${track.querySelector(".hr-flag").style.left} ${track.clientWidth}`;
      if (track.dataset.drawn === drawn) continue;
      track.dataset.drawn = drawn;
      nameBands(track);
    }
  };

  // A band's name stands where it ends, or else where neither the flag nor the model's context is in the way. Bands too
  // narrow for their names are named beyond the last one.
  const nameBands = (track) => {
    const untold = [], inTheWay = [...track.querySelectorAll(".hr-flag, .hr-made")].map((it) => it.offsetLeft);
    for (const band of track.querySelectorAll(".hr-band")) {
      const { offsetLeft: begin, offsetWidth: width, firstElementChild: said } = band;
      if (said.offsetWidth + NAME_ROOM > width) untold.push(said.textContent);
      const half = said.offsetWidth / 2 + NAME_ROOM;
      const middles = { "flex-end": begin + width - half, "flex-start": begin + half, center: begin + width / 2 };
      const isFree = ([, middle]) => !inTheWay.some((at) => Math.abs(middle - at) < half);
      band.style.justifyContent = (Object.entries(middles).find(isFree) ?? ["flex-end"])[0];
    }
    track.querySelector(".hr-untold").firstElementChild.textContent = untold.join(" · ");
  };

  // A hand on a slider, by a ruler's flag or a number of the sentence. It moves the slider's own thumb, as a pointer of
  // its own, so that a release sends one value. A slider in a closed expander has no thumb, and the value is sent by itself.
  const grip = (slider) => {
    const input = inputOf(slider), values = now.steps[slider];
    const at = () => values.indexOf(Number(textOf(slider) ?? follows().at[slider]));
    if (!input) return {
      at,
      move(step) { loose[slider] = String(values[step]); follow(slider); },
      release() { sent.add(slider); sendLoose(); },
    };
    const thumb = input.parentElement.parentElement, { x, y } = thumb.getBoundingClientRect();
    const tell = (type) => thumb.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerId: 4242, pointerType: "mouse",
      isPrimary: true, button: 0, clientX: x, clientY: y }));
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
    tell("pointerdown");
    return {
      at,
      move(step) {
        set.call(input, step);
        for (const type of ["input", "change"]) input.dispatchEvent(new Event(type, { bubbles: true }));
      },
      release() { tell("pointerup"); },
    };
  };
  const to = (hand, step, slider) => {
    const fit = Math.max(0, Math.min(now.steps[slider].length - 1, step));
    if (fit !== hand.at()) hand.move(fit);
  };

  // Drags a slider until the pointer is released; ``stepAt``: the step for a place of the pointer.
  const drag = (slider, { pointerId }, stepAt, then) => {
    const hand = grip(slider);
    const move = (event) => { if (event.pointerId === pointerId) to(hand, stepAt(event.clientX), slider); };
    const end = (event) => {
      if (event.pointerId !== pointerId) return;
      document.removeEventListener("pointermove", move);
      for (const type of ENDS) document.removeEventListener(type, end);
      hand.release();
      then();
    };
    document.addEventListener("pointermove", move);
    for (const type of ENDS) document.addEventListener(type, end);
  };
  const ENDS = ["pointerup", "pointercancel"];
  const dragFlag = (flag, down) => {
    const ruler = flag.closest(".hr-ruler"), { slider, ends } = ruler.dataset, values = now.steps[slider];
    const [low, high] = ends.split(" ").map(Number);
    const { left, width } = ruler.querySelector(".hr-track").getBoundingClientRect();
    drag(slider, down, (x) => {
      const at = Math.log(low) + (x - left) / width * Math.log(high / low);
      const far = (value) => Math.abs(Math.log(value) - at);
      return values.reduce((best, value, i) => far(value) < far(values[best]) ? i : best, 0);
    }, () => inputOf(slider)?.focus({ preventScroll: true })); // arrow keys go on from here
  };

  // A number that is pressed and moved sideways is scrubbed; one that is clicked leads to its slider (manners.py). It may
  // be drawn anew meanwhile, so the next one of its name takes the focus; if there is none, its slider or the first word.
  let focused = null;
  const refocus = () => {
    if (!focused || document.activeElement !== document.body) return;
    const all = [`[data-scrub="${focused}"]`, `.st-key-${focused} input[type="range"]`, ".hr-setup button"];
    all.map((it) => document.querySelector(it)).find((it) => it?.checkVisibility())?.focus({ preventScroll: true });
  };
  const scrub = (slider, down) => {
    const first = now.steps[slider].indexOf(Number(textOf(slider) ?? follows().at[slider]));
    const begin = (event) => {
      if (event.pointerId !== down.pointerId || Math.abs(event.clientX - down.clientX) < SLACK) return;
      stop();
      drag(slider, down, (x) => first + Math.round((x - down.clientX) / SCRUB), () => {
        const swallow = (click) => { click.stopPropagation(); click.preventDefault(); };
        addEventListener("click", swallow, { capture: true, once: true });
        setTimeout(() => removeEventListener("click", swallow, { capture: true }));
        focused = slider;
        document.querySelector(`[data-scrub="${slider}"]`)?.focus({ preventScroll: true });
      });
    };
    const stop = () => {
      document.removeEventListener("pointermove", begin);
      for (const type of ENDS) document.removeEventListener(type, stop);
    };
    document.addEventListener("pointermove", begin);
    for (const type of ENDS) document.addEventListener(type, stop);
  };
  document.addEventListener("pointerdown", (down) => {
    if (!down.isTrusted) return;
    focused = null;
    const flag = down.target.closest?.(".hr-flag"), slider = scrubbedAt(down.target);
    if (down.button || !(flag || slider)) return;
    if (flag) { down.preventDefault(); dragFlag(flag, down); }
    else scrub(slider, down);
  });
  document.addEventListener("keydown", (pressed) => {
    const slider = scrubbedAt(pressed.target), by = BY_KEY[pressed.key];
    if (pressed.key === "Tab") focused = null;
    if (!slider || !by || pressed.ctrlKey || pressed.metaKey || pressed.altKey) return;
    pressed.preventDefault();
    focused = slider;
    const hand = grip(slider);
    to(hand, hand.at() + by, slider);
    hand.release();
  });
  new MutationObserver(refocus).observe(document.querySelector(".stApp"), { childList: true, subtree: true });
  new MutationObserver(place).observe(document.querySelector(".stApp"), { childList: true, subtree: true });
  addEventListener("resize", place);

  let frame = 0, again = false;
  const follow = (slider) => {
    now.moved = slider;
    heal();
    place();
    if (frame) { again = true; return; }
    window.headroomInk?.ahead(!draw(slider) && isAway(slider));
    frame = requestAnimationFrame(() => {
      frame = 0;
      if (again) { again = false; follow(now.moved); }
    });
  };

  const ask = () => {
    const slider = now.wanted, base = follows().bases[slider];
    if (!base || !now.send || rows[slider]?.base === base || now.asked === base || !othersRest(slider) || sent.size) return;
    now.asked = base;
    alone(() => now.send(slider));
  };
  const come = ({ target }) => {
    const slider = sliderAt(target);
    if (slider) { now.wanted = slider; ask(); }
  };
  const TRIES = 5; // our choice: more than the runs that may interrupt one row
  let tries = TRIES;
  const app = document.querySelector(".stApp");
  // A press may be lost on its way, as while a new server runs the page for the first time: its value is sent again.
  const HEAL = 2000; // milliseconds in which nothing runs, no slider moves, and no pointer is down; our choice
  let healing = 0, isHeld = false;
  for (const kind of ["pointerdown", ...ENDS])
    document.addEventListener(kind, () => { isHeld = kind === "pointerdown"; heal(); }, true);
  const heal = () => {
    clearTimeout(healing);
    if (app.dataset.testScriptState !== "notRunning" || isHeld) return;
    healing = setTimeout(() => {
      const lost = Object.keys(follows().at).find(isAway);
      if (!lost || lost in loose) return;
      loose[lost] = textOf(lost);
      sent.add(lost);
      sendLoose();
    }, HEAL);
  };
  new MutationObserver(heal).observe(app, { attributeFilter: ["data-test-script-state"] });
  new MutationObserver(() => { // asks again for a row whose run was interrupted
    const { wanted } = now, base = follows().bases[wanted];
    if (app.dataset.testScriptState === "notRunning") sendLoose();
    if (app.dataset.testScriptState !== "notRunning" || !base || now.asked !== base) return;
    if (rows[wanted]?.base === base) tries = TRIES;
    else if (tries > 0) { tries -= 1; now.asked = null; ask(); }
  }).observe(app, { attributeFilter: ["data-test-script-state"] });
  document.addEventListener("pointerover", come, true);
  document.addEventListener("focusin", come, true);
  new MutationObserver((changes) => {
    const moved = changes.findLast(({ target }) => target.matches("input"));
    const slider = moved && sliderAt(moved.target);
    if (!slider) return;
    delete loose[slider];
    sent.delete(slider);
    follow(slider);
  }).observe(document.body, { subtree: true, attributes: true, attributeFilter: ["aria-valuetext"] });

  return {
    rows,
    documentAt,
    // The server answered. Draws its figure, unless the slider has moved on.
    answered() {
      for (const slider of sent) if (follows().at[slider] === loose[slider]) {
        delete loose[slider];
        sent.delete(slider);
      }
      place();
      ask();
      const isDrawn = now.moved !== null && draw(now.moved);
      window.headroomInk?.ahead(!isDrawn && isAway(now.moved));
      return isDrawn;
    },
    // Receives a row from the server, and the steps of all sliders.
    take({ row, steps }, send, set) {
      Object.assign(now, { send, set, steps });
      if (row) rows[row.slider] = { ...row, kinds: kindsOf(row) };
      place();
      if (row && now.moved === row.slider && draw(row.slider)) window.headroomInk?.ahead(false);
      ask();
    },
  };
};

export default function ({ data: [data], setTriggerValue }) {
  window.headroomInk ??= ink();
  window.headroomRows ??= start();
  if (isOld(window.headroomRows, data.order)) return;
  window.headroomRows.take(data, ...["slider", "moved"].map((name) => (value) => setTriggerValue(name, value)));
}
