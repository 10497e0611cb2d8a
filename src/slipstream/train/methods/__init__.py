"""The training methods: one network and one loss each."""
