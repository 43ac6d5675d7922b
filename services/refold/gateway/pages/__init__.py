"""Pages that people see in a browser: HTML from the view, forms that write inputs, and nothing fetched from elsewhere.
Everything works without JavaScript. `rendering` makes text safe, `chart` draws a run's time, and each other module has
the pages of a subject."""
