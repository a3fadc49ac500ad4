"""What is wrong with how a page looks, as scripts for the browser; each returns a list of findings."""

import time

#: What a reader cannot get to see: content that reaches beyond the window, or beyond an ancestor that cuts it off.
#: Beyond an ancestor that scrolls is allowed where scrolling it brings the content's end into view, and where the
#: keyboard can do so and a screen reader says what it is.
CUT_OFF = """() => {
  const SLACK = 2, SHOWN = 'img, svg, canvas, video, table, button, input, textarea, select';
  const found = new Set(), root = document.documentElement;
  const hidden = (one) => {  // on purpose: invisible, or one pixel wide for screen readers alone
    if (!one.checkVisibility({ opacityProperty: true, visibilityProperty: true })) return true;
    for (let at = one; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.overflowX !== 'visible' && at.clientWidth <= 1 && at.getBoundingClientRect().width <= 2) return true;
    }
    return false;
  };
  const inside = (at) => {
    const box = at.getBoundingClientRect(), left = box.left + at.clientLeft;
    return { left, right: left + at.clientWidth };
  };
  const fits = (box, room) => box.right <= room.right + SLACK && box.left >= room.left - SLACK;
  const scrolls = (at, measure) => {  // whether both ends of the content can be brought into view
    const start = at.scrollLeft, room = inside(at);
    at.scrollLeft = start + measure().right - room.right;
    const end = measure().right <= room.right + SLACK;
    at.scrollLeft += measure().left - room.left;
    const begin = measure().left >= room.left - SLACK;
    at.scrollLeft = start;
    return begin && end;
  };
  const fault = (one, first, measure, said) => {  // of content; `first` is the nearest that can cut it
    if (!measure().width || hidden(one)) return '';
    let box = measure();
    for (let at = first; at && at !== document.body; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.overflowX === 'visible' || style.display === 'contents' || style.display === 'inline') continue;
      if (fits(box, inside(at))) continue;
      const name = at.tagName + '.' + at.className;
      if (style.textOverflow === 'ellipsis') return '';  // the reader sees that there is more
      if (!['auto', 'scroll'].includes(style.overflowX) || !scrolls(at, measure)) {
        return `cut off by ${name}: ${said}`;
      }
      const reached = at.tabIndex === 0 && at.hasAttribute('tabindex');
      if (!reached || !at.getAttribute('aria-label') || !at.getAttribute('role')) return `scrolls unnamed: ${name}`;
      box = inside(at);  // what scrolls must itself be in view
      measure = () => ({ ...inside(at), width: at.clientWidth });
    }
    return fits(box, { left: 0, right: root.clientWidth }) ? '' : `beyond the window: ${said}`;
  };
  for (const one of document.body.querySelectorAll('*:not(script, style, rect, path)')) {
    const box = () => one.getBoundingClientRect(), name = `${one.tagName}.${one.getAttribute('class')}`;
    if (one.matches(SHOWN)) found.add(fault(one, one.parentElement, box, name));
    for (const node of one.childNodes) {
      if (node.nodeType !== Node.TEXT_NODE || !node.data.trim()) continue;
      const range = document.createRange(), text = () => range.getBoundingClientRect();
      range.selectNodeContents(node);
      if (!fault(one, one, text, '')) continue;
      for (const word of node.data.matchAll(/\\S+/g)) {  // by words, as the spaces at a line's end hang out
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        found.add(fault(one, one, text, word[0]));
      }
    }
  }
  found.delete('');
  if (root.scrollWidth > root.clientWidth) found.add('the page scrolls sideways');
  return [...found].slice(0, 12);
}"""
#: Words that stand out too little: below 4.5 to 1, or 3 to 1 where they are large, as WCAG 2 (AA) counts.
FAINT = """() => {
  const found = new Set();
  const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (color) => {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = color;
    paint.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = paint.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, alpha, below) => below.map((value, i) => alpha * top[i] + (1 - alpha) * value);
  const light = (color) => color.map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const canvas = matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
  for (const one of document.body.querySelectorAll('*:not(script, style, svg, svg *, [disabled], [disabled] *)')) {
    const texts = [...one.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
    const said = texts.map((node) => node.data.trim()).join('');
    if (!said || !one.getBoundingClientRect().width) continue;
    if (!one.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const line = [];
    for (let at = one; at; at = at.parentElement) line.unshift(getComputedStyle(at));
    let below = canvas, opacity = 1;
    for (const style of line) {
      const [red, green, blue, alpha] = rgba(style.backgroundColor);
      below = over([red, green, blue], alpha, below);
      opacity *= Number(style.opacity);
    }
    const style = line.at(-1), [red, green, blue, alpha] = rgba(style.color);
    const darker = Number((style.filter.match(/brightness\\((.*?)\\)/) || [0, 1])[1]);
    const ink = [red, green, blue].map((value) => value * darker);
    const [a, b] = [light(over(ink, alpha * opacity, below)), light(below)];
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < (large ? 3 : 4.5)) found.add(`${ratio.toFixed(1)} to 1: ${said.slice(0, 40)}`);
  }
  return [...found].slice(0, 12);
}"""
#: Controls that can be seen and have no name for a screen reader.
NAMELESS = """() => [...document.querySelectorAll(
    'input, textarea, button, select, svg[role=img]:not([aria-hidden]), [role=tab]')]
  .filter(one => one.offsetWidth || one.getBoundingClientRect().width)
  .filter(one => !(one.getAttribute('aria-label') || one.getAttribute('aria-labelledby') || one.title
                   || one.innerText || (one.labels && one.labels.length)))
  .map(one => one.outerHTML.slice(0, 120))"""
#: Parts of our tables with a rule at their left or right.
VERTICAL_RULES = """() => [...document.querySelectorAll('.vlp-wide table, .vlp-wide table *')].filter(one => {
  const style = getComputedStyle(one);
  return parseFloat(style.borderLeftWidth) || parseFloat(style.borderRightWidth);
}).map(one => one.tagName)"""
PATIENCE = 10  # seconds in which colours and sizes come to rest
LOOKS = {"cut off": CUT_OFF, "faint": FAINT, "nameless": NAMELESS, "vertical rules": VERTICAL_RULES}


def faults(page):
    """What is wrong with how a page looks, by the kind of fault."""
    found = {kind: page.evaluate(script) for kind, script in LOOKS.items()}
    return {kind: findings for kind, findings in found.items() if findings}


def faults_at_rest(page):
    """What is still wrong with how a page looks when it has come to rest: colours and sizes change by and by."""
    end = time.monotonic() + PATIENCE
    while (found := faults(page)) and time.monotonic() < end:
        page.wait_for_timeout(200)
    return found
