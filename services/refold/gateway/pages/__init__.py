"""HTML pages from the view, with forms that write inputs, and nothing fetched from elsewhere. Everything works without
JavaScript. `rendering` makes text safe, `chart` draws a run's time, other modules have the pages of a subject."""
