"use strict";
/* Strokes as an image of a data set like MNIST: the drawing fills a box of 20 of 28 pixels, its centre of mass is in
 * the middle, its lines have soft edges. Strokes are lists of points [x, y], on a field from 0 to 1. */

const BOX = 20 / 28;
const PEN = 2.5 / 28; // a line's width, whatever the size of the drawing: it gives as much ink as MNIST has
const MIDDLE = 0.5; // MNIST's is in the middle of pixel 14 of 0 ... 27, on the average of its training images
const LARGEST = 4; // times a small drawing is enlarged, so that a dot stays one

function strokesImage(strokes, height, width) {
  const points = strokes.flat();
  const image = new Uint8Array(height * width);
  if (!points.length) return image;
  const side = Math.min(height, width);
  const [left, right] = range(points.map(([x]) => x));
  const [top, bottom] = range(points.map(([, y]) => y));
  const scale = side * Math.min((BOX - PEN) / Math.max(right - left, bottom - top), LARGEST);
  const drawn = (dx, dy) => {
    const place = ([x, y]) => [
      (x - (left + right) / 2) * scale + width / 2 + dx,
      (y - (top + bottom) / 2) * scale + height / 2 + dy,
    ];
    return paint(image.fill(0), width, strokes.map((stroke) => stroke.map(place)), (PEN * side) / 2);
  };
  const [x, y] = centreOfMass(drawn(0, 0), width);
  const margin = ((1 - BOX) * side) / 2; // farther, and it would leave the image
  const bounded = (shift) => Math.max(-margin, Math.min(margin, shift));
  return drawn(bounded(width / 2 + MIDDLE - x), bounded(height / 2 + MIDDLE - y));
}

function range(numbers) {
  return numbers.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
}

/* Each pixel as dark as the nearest line is near: all within the pen's radius, nothing one pixel farther out. */
function paint(image, width, strokes, radius) {
  const height = image.length / width;
  const reach = radius + 0.5;
  for (const stroke of strokes)
    for (let i = 0; i < stroke.length; i++) {
      const [ax, ay] = stroke[Math.max(i - 1, 0)];
      const [bx, by] = stroke[i];
      const firstRow = Math.max(0, Math.floor(Math.min(ay, by) - reach));
      const endRow = Math.min(height, Math.ceil(Math.max(ay, by) + reach));
      const firstColumn = Math.max(0, Math.floor(Math.min(ax, bx) - reach));
      const endColumn = Math.min(width, Math.ceil(Math.max(ax, bx) + reach));
      for (let row = firstRow; row < endRow; row++)
        for (let column = firstColumn; column < endColumn; column++) {
          const far = distance(column + 0.5, row + 0.5, ax, ay, bx, by);
          const ink = Math.round(255 * Math.max(0, Math.min(1, reach - far)));
          const at = row * width + column;
          if (ink > image[at]) image[at] = ink;
        }
    }
  return image;
}

/* From a point to the line between a and b. */
function distance(x, y, ax, ay, bx, by) {
  const [dx, dy] = [bx - ax, by - ay];
  const length = dx * dx + dy * dy;
  const along = length ? Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / length)) : 0;
  return Math.hypot(x - ax - along * dx, y - ay - along * dy);
}

function centreOfMass(image, width) {
  let [sum, x, y] = [0, 0, 0];
  image.forEach((ink, at) => {
    sum += ink;
    x += ink * ((at % width) + 0.5);
    y += ink * (Math.floor(at / width) + 0.5);
  });
  return [x / sum, y / sum];
}
