"use strict";
/* The page: what is drawn goes to the network with every frame, and its answer onto the screen. */

const facts = JSON.parse(document.getElementById("facts").textContent);
const [channels, height, width] = facts.shape;
const get = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const paper = get("paper");

let network = null;
let strokes = []; // of points [x, y] from 0 to 1
let image = null; // bytes of an example or a picture, instead of strokes
let shown = null; // what the network was given last, and its answer
let waiting = false;

/* ---- From a drawing to an answer */

function currentImage() {
  return image ?? strokesImage(strokes, height, width);
}

function update() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawPaper();
    if (network) answer();
  });
}

function answer() {
  const busy = image !== null || strokes.length > 0;
  const bytes = currentImage();
  const result = network.run(bytes);
  shown = { bytes, busy, ...result };
  document.body.classList.toggle("busy", busy);
  showImage(get("seen"), bytes, channels, height, width);
  showProbabilities(busy ? result.probabilities : null, result.milliseconds);
  if (facts.maps) showMaps(result.maps);
}

/* ---- Pixels */

/* Bytes (1 or 3, height, width) on a canvas of as many pixels. */
function showImage(canvas, bytes, channels, height, width) {
  const plane = height * width;
  paintPixels(canvas, height, width, (at) => [0, 1, 2].map((c) => bytes[at + (channels === 3 ? c * plane : 0)]));
}

function paintPixels(canvas, height, width, colour) {
  canvas.width = width;
  canvas.height = height;
  const pixels = new ImageData(width, height);
  for (let at = 0; at < height * width; at++) pixels.data.set([...colour(at), 255], 4 * at);
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

function drawPaper() {
  const side = Math.round(paper.clientWidth * devicePixelRatio);
  if (paper.width !== side) paper.width = paper.height = side;
  const context = paper.getContext("2d");
  context.clearRect(0, 0, side, side);
  if (image) {
    const small = document.createElement("canvas");
    showImage(small, image, channels, height, width);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, side, side);
    return;
  }
  context.lineWidth = side * 0.075;
  context.lineCap = context.lineJoin = "round";
  context.strokeStyle = getComputedStyle(paper).color;
  for (const stroke of strokes) {
    context.beginPath();
    context.moveTo(stroke[0][0] * side, stroke[0][1] * side);
    stroke.forEach(([x, y], i) => {
      const [nextX, nextY] = stroke[i + 1] ?? [x, y]; // rounded from middle to middle
      context.quadraticCurveTo(x * side, y * side, ((x + nextX) / 2) * side, ((y + nextY) / 2) * side);
    });
    context.stroke();
  }
}

/* ---- Probabilities */

const rows = facts.classes.map((name) => {
  const row = document.createElement("li");
  row.innerHTML = '<span class="name"></span><span class="bar"><i></i></span><span class="share"></span>';
  row.querySelector(".name").textContent = name;
  get("bars").append(row);
  return { row, bar: row.querySelector("i"), share: row.querySelector(".share") };
});

let speaking = 0;
let usual = 0; // milliseconds

function showProbabilities(probabilities, milliseconds) {
  const best = probabilities ? probabilities.indexOf(Math.max(...probabilities)) : -1;
  const name = best < 0 ? "?" : facts.classes[best];
  get("best").textContent = name;
  get("best").classList.toggle("long", name.length > 2);
  rows.forEach(({ row, bar, share }, k) => {
    const p = probabilities ? probabilities[k] : 0;
    row.classList.toggle("best", k === best);
    bar.style.transform = `scaleX(${p})`;
    share.textContent = probabilities ? `${(100 * p).toFixed(1)} %` : "";
  });
  usual += (milliseconds - usual) * (usual ? 0.1 : 1); // of the last ten or so
  get("time").textContent = `, in ${usual < 10 ? usual.toFixed(1) : Math.round(usual)} ms`;
  clearTimeout(speaking); // a screen reader hears what stays
  if (best >= 0) speaking = setTimeout(() => (get("spoken").textContent = `${name}, ${rows[best].share.textContent}`), 600);
}

/* ---- The first layer */

const STOPS = [[8, 9, 12], [87, 34, 74], [214, 84, 38], [253, 186, 90], [255, 250, 225]]; // from nothing to the most

function heat(share) {
  const at = Math.max(0, Math.min(1, share)) * (STOPS.length - 1);
  const below = Math.min(Math.floor(at), STOPS.length - 2);
  return [0, 1, 2].map((c) => STOPS[below][c] + (at - below) * (STOPS[below + 1][c] - STOPS[below][c]));
}

const HEAT = Array.from({ length: 256 }, (_, level) => heat(level / 255));
let tiles = [];
let most = 0; // the largest number a map has shown

function makeMaps() {
  const [count, depth, rows, columns] = facts.maps.kernel;
  const kernels = new Int8Array(bytesOf(facts.maps.kernels).buffer);
  const size = rows * columns;
  tiles = Array.from({ length: count }, (_, k) => {
    const tile = document.createElement("div");
    const [map, kernel] = [document.createElement("canvas"), document.createElement("canvas")];
    tile.className = "map";
    kernel.className = "kernel";
    const grey = (c, at) => 128 + kernels[(k * depth + c) * size + at]; // -1 black, 0 grey, +1 white
    paintPixels(kernel, rows, columns, (at) => [0, 1, 2].map((c) => grey(depth === 3 ? c : 0, at)));
    tile.append(kernel, map);
    get("maps").append(tile);
    return map;
  });
  const [all] = facts.maps.shape;
  const few = count < all ? `The first ${count} of ${all} kernels` : `${all} kernels`;
  const colours = { ternary: ", black for -1, grey for 0, white for +1", binary: ", black for -1, white for +1" };
  get("layer-about").textContent =
    `${few} of ${rows} x ${columns} weights${colours[facts.maps.coding] ?? ""}; ` +
    "beside each, the places of the image that excite it.";
  get("layer").hidden = false;
}

function showMaps(maps) {
  const [, rows, columns] = facts.maps.shape;
  const size = rows * columns;
  for (let at = 0; at < tiles.length * size; at++) if (maps[at] > most) most = maps[at];
  tiles.forEach((canvas, k) => {
    const level = (at) => Math.max(0, Math.min(255, Math.round((255 * maps[k * size + at]) / (most || 1))));
    paintPixels(canvas, rows, columns, (at) => HEAT[level(at)]);
  });
}

/* ---- Numbers */

function showNumbers() {
  const kinds = { ternary: "-1, 0 or +1", binary: "-1 or +1", int8: "whole bytes", float32: "floats", levels: "0 or one of two levels" };
  const parts = Object.entries(facts.codings).map(([coding, count]) => `${number(count)} are ${kinds[coding]}`);
  get("lead").innerHTML =
    `A neural network of <b>${number(Math.round(facts.bytes / 1000))} kB</b> names it while you draw, on your device` +
    `<span id="time"></span>.`;
  get("bytes").textContent = number(facts.bytes);
  get("numbers").textContent =
    `Of its ${number(facts.weights)} weights, ${parts.join(", ")}. ` +
    (facts.error === null ? "" : `On validation images it errs in ${facts.error.toFixed(2)} % of cases. `) +
    "What runs here is its C code, as for a microcontroller, compiled to WebAssembly.";
  for (const [name, bytes] of [["this network", facts.bytes], ["in float32", facts.float_bytes]]) {
    const row = document.createElement("div");
    row.className = "size";
    row.innerHTML = '<span></span><span class="bar"><i></i></span>';
    row.firstChild.textContent = `${name}`;
    row.querySelector("i").style.transform = `scaleX(${bytes / facts.float_bytes})`;
    get("sizes").append(row);
  }
  for (const [name, shape, coding, bytes] of facts.layers) {
    const row = get("layers").tBodies[0].insertRow();
    for (const text of [name, shape.join(" x "), coding, number(bytes)]) row.insertCell().textContent = text;
  }
}

/* ---- What a visitor does */

function clear() {
  strokes = [];
  image = null;
  get("spoken").textContent = "";
  update();
}

function showBytes(bytes) {
  strokes = [];
  image = bytes;
  update();
}

function place(event) {
  const box = paper.getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
}

let pen = null; // the finger or mouse that draws

paper.addEventListener("pointerdown", (event) => {
  if (channels !== 1 || event.button !== 0 || pen !== null) return;
  event.preventDefault();
  pen = event.pointerId;
  paper.setPointerCapture(pen);
  if (image) clear();
  strokes.push([place(event)]);
  update();
});
paper.addEventListener("pointermove", (event) => {
  if (event.pointerId !== pen) return;
  const events = event.getCoalescedEvents?.() ?? [];
  for (const each of events.length ? events : [event]) strokes[strokes.length - 1].push(place(each));
  update();
});
for (const name of ["pointerup", "pointercancel"])
  paper.addEventListener(name, (event) => {
    if (event.pointerId === pen) pen = null;
  });
get("clear").addEventListener("click", clear);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") clear();
});
new ResizeObserver(update).observe(paper);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);

get("file").addEventListener("change", async ({ target }) => {
  if (!target.files.length) return;
  const picture = await createImageBitmap(target.files[0]);
  const box = pictureBox([picture.width, picture.height], [width, height], facts.preparation.shorter_side);
  const small = document.createElement("canvas");
  [small.width, small.height] = [width, height];
  const context = small.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, ...box, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height); // red, green, blue, opacity
  showBytes(Uint8Array.from({ length: 3 * height * width }, (_, at) => {
    const plane = height * width;
    return data[4 * (at % plane) + Math.floor(at / plane)];
  }));
});

function makeExamples() {
  for (const { label, pixels } of facts.examples) {
    const button = document.createElement("button");
    const canvas = document.createElement("canvas");
    const bytes = bytesOf(pixels);
    button.type = "button";
    button.setAttribute("aria-label", `Example: ${label}`);
    showImage(canvas, bytes, channels, height, width);
    button.append(canvas);
    button.addEventListener("click", () => showBytes(bytes));
    get("examples").append(button);
  }
}

if (channels === 3) {
  document.body.classList.add("picture");
  get("choose").hidden = false;
  get("hint").textContent = "Choose a picture";
}
showNumbers();
makeExamples();
if (facts.maps) makeMaps();
loadNetwork(bytesOf(get("wasm").textContent), facts).then(
  (loaded) => {
    network = loaded;
    update();
  },
  (problem) => (get("lead").textContent = `This browser cannot run the network: ${problem.message}`),
);
