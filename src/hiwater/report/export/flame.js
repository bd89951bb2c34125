// Zoom and search for the flame graph this script lies in. Everything it shows it reads from the drawing's own attributes.
(function () {
  "use strict";
  var svg = document.currentScript ? document.currentScript.ownerSVGElement || document.documentElement : document.documentElement;
  var all = Number(svg.getAttribute("data-bytes"));
  var left = Number(svg.getAttribute("data-left"));
  var full = Number(svg.getAttribute("data-width"));
  var character = Number(svg.getAttribute("data-character"));
  var found = svg.querySelector("#found");
  var frames = Array.prototype.map.call(svg.querySelectorAll("g.f"), function (group) {
    return {
      group: group,
      rect: group.querySelector("rect"),
      x: Number(group.getAttribute("data-x")),
      bytes: Number(group.getAttribute("data-w")),
      row: Number(group.getAttribute("data-row")),
      label: group.getAttribute("data-label"),
      name: group.querySelector("title").textContent.split("\n")[0].toLowerCase(),
    };
  });

  function label(frame, x, width) {
    var text = frame.group.querySelector("text");
    var room = Math.floor((width - 7) / character);
    if (room < 3) {
      if (text) text.textContent = "";
      return;
    }
    if (!text) {
      text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      text.setAttribute("y", Number(frame.rect.getAttribute("y")) + 13);
      frame.group.appendChild(text);
    }
    text.setAttribute("x", x + 4);
    text.textContent = frame.label.length <= room ? frame.label : frame.label.slice(0, room - 1) + "\u2026";
  }

  // Give the whole width to one frame: its callers are stretched and faded, what lies beside it goes.
  function zoom(target) {
    var end = target.x + target.bytes;
    frames.forEach(function (frame) {
      var isCaller = frame.row < target.row && frame.x <= target.x && frame.x + frame.bytes >= end;
      var isInside = frame.row >= target.row && frame.x >= target.x && frame.x + frame.bytes <= end;
      frame.group.style.display = isCaller || isInside ? "" : "none";
      if (!isCaller && !isInside) return;
      frame.group.classList.toggle("faded", isCaller);
      var x = isCaller ? left : left + ((frame.x - target.x) / target.bytes) * full;
      var width = isCaller ? full : (frame.bytes / target.bytes) * full;
      frame.rect.setAttribute("x", x);
      frame.rect.setAttribute("width", Math.max(width, 0.2));
      label(frame, x, width);
    });
  }

  // Frames below a found one are not counted again.
  function search(words) {
    var sum = 0;
    var until = [];
    var wanted = words.toLowerCase();
    var ordered = frames.slice().sort(function (a, b) { return a.row - b.row; });
    ordered.forEach(function (frame) {
      var matches = wanted !== "" && frame.row > 0 && frame.name.indexOf(wanted) >= 0;
      frame.group.classList.toggle("found", matches);
      if (!matches) return;
      var counted = until.some(function (span) { return span[0] <= frame.x && frame.x + frame.bytes <= span[1]; });
      if (!counted) {
        sum += frame.bytes;
        until.push([frame.x, frame.x + frame.bytes]);
      }
    });
    found.textContent = wanted ? "\u201c" + words + "\u201d: " + ((100 * sum) / all).toFixed(1) + " % of what is shown" : "";
  }

  frames.forEach(function (frame) {
    frame.group.addEventListener("click", function () { zoom(frame); });
  });
  svg.querySelector("#reset").addEventListener("click", function () { zoom(frames[0]); search(""); });
  svg.querySelector("#search").addEventListener("click", function () {
    var words = window.prompt("Search functions and files");
    if (words !== null) search(words);
  });
  document.addEventListener("keydown", function (event) {
    if (event.key === "Escape") { zoom(frames[0]); search(""); }
  });
  svg.classList.add("scripted");
})();
