"""What of a model leaves a client, and hidden how: personalised and encrypted methods."""
