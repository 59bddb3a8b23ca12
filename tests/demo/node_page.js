// node node_page.js PAGE < {"images": [[bytes]], "strokes": [[[[x, y]]]]}: what the page's own scripts make of them.
"use strict";
const fs = require("fs");
const page = fs.readFileSync(process.argv[2], "utf8");
const part = (id) => page.match(new RegExp(`<script[^>]*id="${id}">([^]*?)</script>`))[1];
const { loadNetwork, bytesOf, strokesImage } = new Function(
  `${part("network.js")}${part("strokes.js")}; return { loadNetwork, bytesOf, strokesImage };`,
)();
const facts = JSON.parse(part("facts"));
const { images = [], strokes = [] } = JSON.parse(fs.readFileSync(0, "utf8"));
const [, height, width] = facts.shape;
loadNetwork(bytesOf(part("wasm")), facts).then((network) => {
  const answers = images.map((image) => {
    const { outputs, probabilities, maps } = network.run(Uint8Array.from(image));
    return { outputs, probabilities, maps: maps && Array.from(maps) };
  });
  const drawn = strokes.map((each) => Array.from(strokesImage(each, height, width)));
  console.log(JSON.stringify({ facts, answers, drawn }));
});
