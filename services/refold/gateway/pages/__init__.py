"""HTML pages from the view, with forms that write inputs; they load nothing from elsewhere, and work without
JavaScript."""
