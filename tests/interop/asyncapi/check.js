// Reads a list of AsyncAPI documents from standard input, and prints what the official parser says
// of each: {"version": ..., "problems": [...]}.
const { Parser } = require("@asyncapi/parser");

async function checked(text) {
  const { document, diagnostics } = await new Parser().parse(text);
  const problems = diagnostics
    .filter((each) => each.severity === 0)
    .map((each) => `${each.path.join(".")}: ${each.message}`);
  return { version: document ? document.version() : null, problems };
}

const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
Promise.all(texts.map(checked)).then((found) => console.log(JSON.stringify(found)));
