"""The proxy that lets a jail reach the hosts it may reach, and no others."""
