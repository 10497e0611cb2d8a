"""What changes the output's distribution: lossy verification rules, and scores that route requests between models."""
