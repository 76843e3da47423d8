"use strict";
// Pictures of the message that is being written: chosen, pasted or dropped, for a model that sees.

const PICTURE_TYPES = /^image\/(png|jpeg|webp|gif|bmp)$/;
let pictures = []; // as data URLs

async function addPictures(files) {
  const chosen = [...files].filter(({ type }) => PICTURE_TYPES.test(type));
  if (!$("model").value) await findModels();
  const { sees } = await kindOf($("model").value);
  if (sees) pictures.push(...await Promise.all(chosen.map(urlOf)));
  const words = sees ? "Pictures are PNG, JPEG, WebP, GIF or BMP." : "This model reads texts alone.";
  showPictures(sees && chosen.length ? "" : words);
  toText();
}

function urlOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function showPictures(words = "") {
  $("pictures").replaceChildren(words);
  pictures.forEach((url, number) => {
    const frame = make("span", $("pictures"));
    drawPicture(frame, url);
    const drop = button(frame, "×", () => { pictures.splice(number, 1); showPictures(); });
    drop.setAttribute("aria-label", `Leave out picture ${number + 1}`);
  });
}

function takePictures() {
  const taken = pictures;
  pictures = [];
  showPictures();
  return taken;
}

function drawPicture(parent, url) {
  const image = make("img", parent, "picture");
  image.src = url;
  image.alt = "Picture";
}

// Of a question: those that this page still has.
function drawPictures(article, { pictures: urls, numPictures }) {
  for (const url of urls ?? []) drawPicture(article, url);
  if (numPictures && !urls) make("p", article, "small", `${numPictures} pictures, which are not kept`);
}
