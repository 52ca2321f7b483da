// Updates verdict and figure while a slider moves.
//
// When the pointer or focus enters a slider, the server sends its row: what the page shows at each step if nothing else
// changes. A row is valid as long as the server's answers have the same base for its slider.
const start = () => {
  const rows = {};
  const now = { moved: null, wanted: null, asked: null, send: null };
  const boxOf = () => [...document.querySelectorAll(".hr-plot")].find((box) => box.follows);
  const follows = () => boxOf()?.follows ?? { bases: {}, at: {} };
  const inputOf = (slider) => document.querySelector(`.st-key-${slider} input[type="range"]`);
  const textOf = (slider) => inputOf(slider)?.getAttribute("aria-valuetext");
  const sliderAt = (node) => node.closest?.(".hr-flag")?.closest(".hr-ruler").dataset.slider
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

  // Whether a piece is of the setup on screen, but for its sliders: the server may have drawn another model's since.
  const isOfThis = ([selector, pieces]) => {
    const wanted = document.createElement("template");
    wanted.innerHTML = pieces.join("");
    const [now, then] = [document, wanted.content].map((it) => it.querySelector(selector)?.dataset.of);
    return !now || !then || now === then;
  };

  const show = ({ figure, alt, of, html }) => {
    if (!Object.entries(html).every(isOfThis)) return false;
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
    return true;
  };

  const draw = (slider) => {
    if (!holds(slider)) return false;
    const place = rows[slider].texts.indexOf(textOf(slider));
    if (place < 0) return false;
    return show(documentAt(rows[slider], place));
  };

  // The flags stand where the sliders do, and a ruler is dimmed while anything but its own slider is another.
  const place = () => {
    for (const ruler of document.querySelectorAll(".hr-ruler")) {
      const { slider, of, ends } = ruler.dataset, text = textOf(slider), flag = ruler.querySelector(".hr-flag");
      ruler.toggleAttribute("data-late", of !== follows().bases[slider] || !othersRest(slider));
      if (!text) continue;
      const [low, high] = ends.split(" ").map(Number), value = Number(text);
      const share = Math.log(Math.max(value, low) / low) / Math.log(high / low);
      const said = value.toLocaleString("en-US"), { firstElementChild: name } = flag;
      flag.style.left = `${100 * Math.min(share, 1)}%`;
      if (name.textContent !== said) name.textContent = said;
    }
  };

  // A dragged flag drags the slider's own thumb, as a pointer of its own, so that a release sends one value.
  const drag = (flag, down) => {
    const ruler = flag.closest(".hr-ruler"), { slider, steps, ends } = ruler.dataset, input = inputOf(slider);
    if (!input) return;
    const [low, high] = ends.split(" ").map(Number), values = steps.split(" ").map(Number);
    const { left, width } = ruler.querySelector(".hr-track").getBoundingClientRect();
    const thumb = input.parentElement.parentElement, { x, y } = thumb.getBoundingClientRect();
    const tell = (type) => thumb.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerId: 4242, pointerType: "mouse",
      isPrimary: true, button: 0, clientX: x, clientY: y }));
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
    const move = ({ clientX }) => {
      const at = Math.log(low) + (clientX - left) / width * Math.log(high / low);
      const far = (value) => Math.abs(Math.log(value) - at);
      const step = values.reduce((best, value, i) => far(value) < far(values[best]) ? i : best, 0);
      if (Number(input.value) === step) return;
      set.call(input, step);
      for (const type of ["input", "change"]) input.dispatchEvent(new Event(type, { bubbles: true }));
    };
    const end = () => {
      flag.removeEventListener("pointermove", move);
      tell("pointerup");
      input.focus({ preventScroll: true }); // arrow keys go on from here
    };
    flag.setPointerCapture(down.pointerId);
    flag.addEventListener("pointermove", move);
    for (const type of ["pointerup", "pointercancel"]) flag.addEventListener(type, end, { once: true });
    tell("pointerdown");
  };
  document.addEventListener("pointerdown", (down) => {
    const flag = down.target.closest?.(".hr-flag");
    if (flag && !down.button) { down.preventDefault(); drag(flag, down); }
  });
  new MutationObserver(place).observe(document.querySelector(".stApp"), { childList: true, subtree: true });

  let frame = 0, again = false;
  const follow = (slider) => {
    now.moved = slider;
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
    if (!base || !now.send || rows[slider]?.base === base || now.asked === base || !othersRest(slider)) return;
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
  new MutationObserver(() => { // asks again for a row whose run was interrupted
    const { wanted } = now, base = follows().bases[wanted];
    if (app.dataset.testScriptState !== "notRunning" || !base || now.asked !== base) return;
    if (rows[wanted]?.base === base) tries = TRIES;
    else if (tries > 0) { tries -= 1; now.asked = null; ask(); }
  }).observe(app, { attributeFilter: ["data-test-script-state"] });
  document.addEventListener("pointerover", come, true);
  document.addEventListener("focusin", come, true);
  new MutationObserver((changes) => {
    const slider = sliderAt(changes.at(-1).target);
    if (slider) follow(slider);
  }).observe(document.body, { subtree: true, attributes: true, attributeFilter: ["aria-valuetext"] });

  return {
    rows,
    documentAt,
    // The server answered. Draws its figure, unless the slider has moved on.
    answered() {
      place();
      ask();
      const isDrawn = now.moved !== null && draw(now.moved);
      window.headroomInk?.ahead(!isDrawn && isAway(now.moved));
      return isDrawn;
    },
    // Receives a row from the server.
    take(row, send) {
      now.send = send;
      if (row) rows[row.slider] = row;
      if (row && now.moved === row.slider && draw(row.slider)) window.headroomInk?.ahead(false);
      ask();
    },
  };
};

export default function ({ data: [data], setTriggerValue }) {
  window.headroomInk ??= ink();
  window.headroomRows ??= start();
  window.headroomRows.take(data.row, (slider) => setTriggerValue("slider", slider));
}
