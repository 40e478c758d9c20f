// node search_site.js WORKER INDEX QUERY...: pages for each query as JSON, best first, by the worker
// that the site's theme runs in a browser.
const fs = require("fs"), vm = require("vm");
const [worker, index, ...queries] = process.argv.slice(2);
const listeners = [], answers = [];
const page = {
  addEventListener: (kind, call) => kind === "message" && listeners.push(call),
  postMessage: message => answers.push(message),
  console, performance, queueMicrotask, setTimeout, URL,
};
page.self = page;
vm.runInContext(fs.readFileSync(worker, "utf8"), vm.createContext(page));

const [SETUP, QUERY] = [0, 2];
async function send(type, data) {
  answers.length = 0;
  for (const call of listeners) await call({data: {type, data}});
  return answers[0].data;
}
(async () => {
  const {config, docs} = JSON.parse(fs.readFileSync(index, "utf8"));
  await send(SETUP, {config, docs, options: {suggest: false}});
  const found = {};
  for (const query of queries)
    found[query] = (await send(QUERY, query)).items.map(sections => sections[0].location);
  console.log(JSON.stringify(found));
})();
