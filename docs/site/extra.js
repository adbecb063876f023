// Code that is wider than the page scrolls: let the keyboard reach it.
for (const code of document.querySelectorAll("pre > code")) code.tabIndex = 0;
