"""One prefix before any launch: it watches the ranks from outside, and says which failed first, where and why."""
