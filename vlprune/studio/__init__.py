"""The web page on the user's own machine: see what methods keep, ask, compare, and follow Script step by step.

`session` computes, `explain`, `canvas`, `fragments` and `takeaway` make what is shown of it, all without gradio; `page`
puts it on a page, and `serve` opens that.
"""
