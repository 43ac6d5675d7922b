"""Agent code: replayed along its history, held where it contradicts that, and watched for hangs."""
