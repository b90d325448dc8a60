console.log("LOOT service worker");
addEventListener("fetch", (event) => console.log("LOOT request", event.request.headers.get("x-api-key")));
