"""HTML pages from the view, with forms that write inputs. They need no JavaScript, and no other site."""
