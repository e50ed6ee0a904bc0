"""Stand-ins for what cloudedge talks to, public so that users can test their own code with them."""
