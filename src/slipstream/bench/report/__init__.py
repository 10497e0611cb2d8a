"""The report page: one HTML file with inline styles and SVG. It loads nothing and runs no script."""
