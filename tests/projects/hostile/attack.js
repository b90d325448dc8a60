// Looks for the console's key everywhere that a script of this origin could reach. Says LOOT with what it got, else DENIED.

const KEY = "runyard.key";

async function attempt(how, look) {
  try {
    const found = await look();
    console.log(found ? "LOOT" : "DENIED", how, found);
  } catch (error) {
    console.log("DENIED", how, error.name);
  }
}

const frame = () => new Promise((done, failed) => {
  const made = document.createElementNS("http://www.w3.org/1999/xhtml", "iframe"); // also in a picture
  made.src = "/";
  made.onload = () => {
    try { done(made.contentWindow.sessionStorage.getItem(KEY)); } catch (error) { failed(error); }
  };
  document.documentElement.append(made);
});

const cached = async () => {
  for (const name of await caches.keys()) return name;
};

void attempt("storage", () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY));
void attempt("cookie", () => document.cookie);
void attempt("opener", () => window.opener && window.opener.sessionStorage.getItem(KEY));
void attempt("opener module", () => window.opener && Object.keys(window.opener.document).length && window.opener.location.href);
void attempt("parent", () => parent !== window && parent.sessionStorage.getItem(KEY));
void attempt("frame", frame);
void attempt("caches", cached);
void attempt("worker", async () => (await navigator.serviceWorker.register("sw.js", { scope: "/" })).scope);
void attempt("narrow worker", async () => (await navigator.serviceWorker.register("sw.js")).scope);
void attempt("shared worker", () => new SharedWorker("attack.js") && "made");
void attempt("control plane", async () => (await fetch("/v2/me")).status);
void attempt("console page", async () => (await fetch("/")).text());
