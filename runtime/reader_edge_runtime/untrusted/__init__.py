"""What comes from outside, checked: values, options, paths and files that a user named."""
