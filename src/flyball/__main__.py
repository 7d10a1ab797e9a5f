from flyball.cli import main

main()
