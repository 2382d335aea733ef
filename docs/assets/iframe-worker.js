/* Browsers start no worker for a page that was opened from disk. There the search of the site runs in
   a hidden frame, which has what it uses of a worker: messages both ways, and importScripts. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      const run = source => new Promise((done, failed) => {
        const script = inside.document.createElement("script")
        script.src = new URL(source, location.href).href
        script.onload = done
        script.onerror = () => failed(new Error(`${source} cannot be loaded`))
        inside.document.body.append(script)
      })
      inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => run(source)), Promise.resolve())
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside = inside
      this.ready = run(url)
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
