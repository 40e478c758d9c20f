"""Speed against peers, measured side by side on one machine."""
